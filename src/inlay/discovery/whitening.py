"""The metric of known classes: directions in which images of one class differ count little."""

import torch
from torch import Tensor

from inlay.discovery.statistics import ClassStatistics

__all__ = ["POOLED_FLOOR", "known_metric", "mean_within_class_covariance", "whitening"]

_FLOOR = 0.03
POOLED_FLOOR = 1.0
"""Share of the mean variance that is added where classes share their correlations, which are known badly there."""


def mean_within_class_covariance(statistics: ClassStatistics) -> Tensor:
    """Return the covariance within a class, averaged over the classes that are not empty, [D, D], float64.

    Raises:
        ValueError: If all classes are empty.
    """
    present = torch.nonzero(statistics.counts > 0).flatten().tolist()
    if not present:
        raise ValueError("there is no class with samples")
    if statistics.kind == "pooled":
        # That of a class with the mean variances, as these correlations were measured over all classes together.
        assert statistics.correlation is not None
        typical = statistics.std[present].double().square().mean(dim=0).sqrt()
        return typical[:, None] * statistics.correlation.double() * typical
    total = statistics.covariance(present[0])
    for index in present[1:]:
        total = total + statistics.covariance(index)
    return total / len(present)


@torch.no_grad()
def known_metric(statistics: ClassStatistics) -> Tensor:
    """Return the matrix M for which |x @ M - y @ M| is the distance of x and y in the metric of known classes.

    It is (W + s·t·I)^(-1/2) with W the covariance within a class and t its mean variance; s is 0.03, and 1 where
    classes share their correlations.

    Returns:
        The matrix, [D, D], symmetric, float64.

    Raises:
        ValueError: If all classes are empty.
    """
    floor = POOLED_FLOOR if statistics.kind == "pooled" else _FLOOR
    return _inverse_root(mean_within_class_covariance(statistics), floor)


@torch.no_grad()
def whitening(within: Tensor, features: Tensor, dimensions: int, shrinkage: float = _FLOOR) -> tuple[Tensor, Tensor]:
    """Return a linear map to the leading directions of features in the metric of a within-class covariance.

    Features are centred and multiplied by (W + s·t·I)^(-1/2), where t is the mean variance of W; of the result, the
    directions of greatest variance are kept. What differs between images of a class is then alike in all directions,
    and the rest is what tells classes apart.

    Args:
        within: Covariance within classes, W, [D, D].
        features: Features of unlabelled images, [N, D].
        dimensions: Directions to keep, M; all where there are fewer.
        shrinkage: s, above 0: how much of the mean variance is added in every direction.

    Returns:
        The centre, [D], and the matrix, [D, M'], M' = min(M, D), of the map (x - centre) @ matrix, in at least float32.

    Raises:
        ValueError: If the shapes do not fit, there are no features, or a number is not above 0.
    """
    size = features.shape[-1]
    if features.ndim != 2 or len(features) == 0 or within.shape != (size, size):
        raise ValueError(
            f"need W [D, D] and features [N, D], N > 0; got {tuple(within.shape)}, {tuple(features.shape)}"
        )
    if dimensions < 1 or shrinkage <= 0:
        raise ValueError(f"dimensions must be 1 or more and shrinkage above 0; got {dimensions} and {shrinkage}")
    points = features.double()
    centre = points.mean(dim=0)
    root = _inverse_root(within.to(points), shrinkage)
    moved = (points - centre) @ root
    _, directions = torch.linalg.eigh(moved.T @ moved / len(moved))
    # eigh sorts by rising variance.
    leading = directions[:, -min(dimensions, size) :].flip(dims=(1,))
    precision = torch.promote_types(features.dtype, torch.float32)
    return centre.to(precision), (root @ leading).to(precision)


def _inverse_root(within: Tensor, shrinkage: float) -> Tensor:
    """Return (W + s·t·I)^(-1/2) for a symmetric W, [D, D]."""
    values, vectors = torch.linalg.eigh(within)
    values = values.clamp_min(0)
    # Without any spread there is nothing to whiten by.
    floor = torch.where(values.mean() > 0, shrinkage * values.mean(), 1.0)
    root: Tensor = vectors * (values + floor).rsqrt() @ vectors.T
    return root
