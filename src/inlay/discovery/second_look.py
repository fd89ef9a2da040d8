"""A second look at a pile: new classes, once there are some, are compared with the known ones."""

import math

import torch
from torch import Tensor

from inlay.discovery.kmeans import kmeans
from inlay.discovery.refit import refit_linear
from inlay.discovery.statistics import ClassStatistics, class_statistics

__all__ = ["second_look"]

_SAMPLES = 20_000
_MOST_PER_CLASS = 200
_WEIGHT_DECAY = 1e-3


@torch.no_grad()
def second_look(
    features: Tensor,
    new: Tensor,
    known: ClassStatistics,
    classes: int,
    error: float,
    generator: torch.Generator,
    held_out: Tensor | None = None,
) -> Tensor:
    """Say once more which images are new, now that new classes can be compared with the known ones.

    A first look can only ask how far an image lies from what is known, and takes the images of a new class that lie
    nearest for known ones. Here those that look new are clustered, a linear classifier is fitted to features drawn from
    the statistics of known and new classes, and an image is new if the best new class beats the best known one by more
    than a margin: 0, or what a share `error` of images of known classes exceeds, or of features drawn from them.

    Args:
        features: Features of the pile, [N, D].
        new: Images that look new, bool [N].
        known: Statistics of the known classes.
        classes: Number of new classes.
        error: Share of known images that may be taken for new.
        generator: Source of the draws and of the seeds of k-means.
        held_out: Features of images of known classes that nothing was fitted to, [n, D]; without them such features
            are drawn, which errs to the side of new: real images lie further out.

    Returns:
        Which images are new, bool [N]; those that look so where there are not more of them than classes.
    """
    chosen = features[new]
    if len(chosen) <= classes:
        return new
    clusters = kmeans(chosen, classes, generator, spherical=True, restarts=3).labels
    if int(torch.bincount(clusters).max()) < 2:
        return new
    found = class_statistics(chosen, clusters, classes, known.kind, allow_empty=True)
    total = len(known.counts) + classes
    per_class = max(2, min(_MOST_PER_CLASS, _SAMPLES // total))
    old_samples, old_labels = known.sample(per_class, generator)
    new_samples, new_labels = found.sample(per_class, generator)
    with torch.enable_grad():
        weight, bias = refit_linear(
            torch.cat([old_samples, new_samples]),
            torch.cat([old_labels, len(known.counts) + new_labels]),
            total,
            _WEIGHT_DECAY,
        )

    def lead(points: Tensor) -> Tensor:
        scores = points.to(weight) @ weight.T + bias
        return scores[:, len(known.counts) :].amax(dim=1) - scores[:, : len(known.counts)].amax(dim=1)

    usual = known.sample(math.ceil(_SAMPLES / known.present), generator)[0] if held_out is None else held_out
    margin = lead(usual).quantile(1 - error).clamp_min(0)
    return lead(features) > margin
