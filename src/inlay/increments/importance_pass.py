"""One pass over the images of a stage that measures how important each channel of the network is."""

import copy
from collections.abc import Iterator
from contextlib import closing

import torch
from torch import Tensor

from inlay.engine.batch import Batch
from inlay.engine.randomness import derive_seed
from inlay.increments.classifier import Classifier
from inlay.increments.importance import channel_importance, relative_importance
from inlay.increments.increment import Increment
from inlay.increments.outputs import Loss, Outputs

__all__ = ["measured_importance"]


def measured_importance(
    task: Increment, classifier: Classifier, groups: tuple[str, ...], loss: Loss
) -> dict[str, Tensor]:
    """Measure the relative importance of each channel of some maps for a loss (AFC, CVPR 2022).

    The images are augmented as in training, the classifier is in eval mode, and every image counts the same.

    Args:
        task: The stage, with its images.
        classifier: The classifier after the stage, merged; it is not changed.
        groups: Names of the children of the network whose maps are meant.
        loss: The mean over the images of a batch of what each image costs.

    Returns:
        Importances of mean 1 by name of the child, [C] each.
    """
    # Maps of frozen weights have no gradient.
    probe = copy.deepcopy(classifier).eval().requires_grad_(True)
    totals: list[Tensor] = []
    for batch in _batches(task):
        outputs = Outputs(task, probe, batch, groups)
        # The gradient of a mean over B images is a Bth of that of each: of the sum it is that of each image alone.
        means = channel_importance(len(batch.rows) * loss(outputs), outputs.maps)
        sums = [len(batch.rows) * mean for mean in means]
        totals = [total + new for total, new in zip(totals, sums, strict=True)] if totals else sums
    return {name: relative_importance(total) for name, total in zip(groups, totals, strict=True)}


def _batches(task: Increment) -> Iterator[Batch]:
    key = torch.tensor(derive_seed(task.seed, "importance"), device=task.device)
    requests = torch.split(torch.arange(len(task.feed)), task.training.batch)
    with closing(task.feed.batches(requests)) as images:
        for pixels, request in zip(images, requests, strict=True):
            rows = request.to(task.device)
            yield Batch(pixels, pixels, rows, rows, key)
