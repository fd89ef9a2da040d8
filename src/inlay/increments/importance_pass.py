"""Passes over the images of a stage after it: how important each channel is, and statistics of batch norms."""

import copy
from collections.abc import Iterator
from contextlib import closing

import torch
from torch import Tensor, nn

from inlay.engine.batch import Batch
from inlay.engine.order import Order
from inlay.engine.randomness import derive_seed
from inlay.increments.classifier import Classifier
from inlay.increments.importance import channel_importance, relative_importance
from inlay.increments.increment import Increment
from inlay.increments.outputs import Loss, Outputs

__all__ = ["follow_stage", "measured_importance"]


def measured_importance(
    task: Increment, classifier: Classifier, groups: tuple[str, ...], loss: Loss, *, training: bool = False
) -> dict[str, Tensor]:
    """Measure the relative importance of each channel of some maps for a loss (AFC, CVPR 2022).

    The images are augmented as in training. In eval mode every image counts the same, whatever batch it is in.

    Args:
        task: The stage, with its images.
        classifier: The classifier after the stage, merged; it is not changed.
        groups: Names of the children of the network whose maps are meant.
        loss: The mean over the images of a batch of what each image costs.
        training: Whether batch norms normalise by the images of a batch, as in the published code; they are then
            shuffled.

    Returns:
        Importances of mean 1 by name of the child, [C] each.
    """
    # Maps of frozen weights have no gradient.
    probe = copy.deepcopy(classifier).train(training).requires_grad_(True)
    totals: list[Tensor] = []
    for batch in _batches(task, shuffled=training):
        outputs = Outputs(task, probe, batch, groups)
        # The gradient of a mean over B images is a Bth of that of each: of the sum it is that of each image alone.
        means = channel_importance(len(batch.rows) * loss(outputs), outputs.maps)
        sums = [len(batch.rows) * mean for mean in means]
        totals = [total + new for total, new in zip(totals, sums, strict=True)] if totals else sums
    return {name: relative_importance(total) for name, total in zip(groups, totals, strict=True)}


@torch.no_grad()
def follow_stage(task: Increment, network: nn.Module) -> None:
    """Let the running statistics of batch norms follow one pass over the images of a stage, augmented and shuffled.

    Args:
        task: The stage, with its images.
        network: It is left in eval mode; one without batch norms is left as it is.
    """
    if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()):
        return
    classifier = Classifier(network, nn.Identity()).train()
    for batch in _batches(task, shuffled=True):
        Outputs(task, classifier, batch)
    network.eval()


def _batches(task: Increment, shuffled: bool) -> Iterator[Batch]:
    seed = derive_seed(task.seed, "importance")
    key = torch.tensor(seed, device=task.device)
    images, most = len(task.feed), task.training.batch
    # Shuffled batches have one size, as a small last one would give batch norms poor statistics.
    requests = Order(images, most, seed).epoch(0).unbind() if shuffled else torch.split(torch.arange(images), most)
    with closing(task.feed.batches(requests)) as brought:
        for pixels, request in zip(brought, requests, strict=True):
            rows = request.to(task.device)
            yield Batch(pixels, pixels, rows, rows, key)
