"""How surprising features are under the Gaussians of known classes.

Pooled correlations are for many features and few images. There all classes have one covariance, to which the whole mean
variance is added in every direction, and what is common to all of them is measured by the same one.
"""

import torch
from torch import Tensor

from inlay.discovery.statistics import ClassStatistics
from inlay.discovery.whitening import POOLED_FLOOR, mean_within_class_covariance

__all__ = ["class_surprise", "common_surprise"]

_RIDGE = 1e-2
_SMALLEST = 1e-12


def class_surprise(points: Tensor, statistics: ClassStatistics, shrinkage: float) -> Tensor:
    """Return -2 log of the density of the class in which points are least surprising, but for a constant, [N].

    Args:
        points: Features, [N, D], float64.
        statistics: Statistics of the classes.
        shrinkage: Share of the mean covariance in that of each class, 0 to 1.
    """
    if statistics.kind == "pooled":
        return _pooled_surprise(points, statistics.mean[_present(statistics)].double(), statistics)
    if statistics.kind != "full":
        return _variance_surprise(points, statistics, shrinkage)
    shared, few = mean_within_class_covariance(statistics), _few_images(statistics)
    least = points.new_full((len(points),), torch.inf)
    for index in _present(statistics):
        mean, covariance = statistics.mean[index].double(), torch.lerp(statistics.covariance(index), shared, shrinkage)
        surprise = _round_surprise(points, mean, shared) if few else _surprise(points, mean, covariance, shared)
        least = torch.minimum(least, surprise)
    return least


def common_surprise(points: Tensor, statistics: ClassStatistics) -> Tensor:
    """Return -2 log of the density of one Gaussian for all classes together, but for a constant, [N].

    Args:
        points: Features, [N, D], float64.
        statistics: Statistics of the classes, each of which has the same weight.
    """
    means = statistics.mean[_present(statistics)].double()
    centre = means.mean(dim=0)
    if statistics.kind == "pooled":
        return _pooled_surprise(points, centre[None], statistics)
    shared = mean_within_class_covariance(statistics)
    covariance = shared + (means - centre).T @ (means - centre) / len(means)
    if _few_images(statistics):
        return _round_surprise(points, centre, covariance)
    return _surprise(points, centre, covariance, shared)


def _variance_surprise(points: Tensor, statistics: ClassStatistics, shrinkage: float) -> Tensor:
    """Return `class_surprise` under Gaussians without correlations, which needs no matrices."""
    variances = statistics.std.double().square().expand_as(statistics.mean)[_present(statistics)]
    shared, few = variances.mean(dim=0), _few_images(statistics)
    least = points.new_full((len(points),), torch.inf)
    ridge = (_RIDGE * shared.mean()).clamp_min(_SMALLEST)
    for mean, own in zip(statistics.mean[_present(statistics)].double(), variances, strict=True):
        spread = shared.mean().expand_as(shared) if few else torch.lerp(own, shared, shrinkage)
        spread = (spread + ridge).clamp_min(_SMALLEST)
        least = torch.minimum(least, (points - mean).square() @ spread.reciprocal() + spread.log().sum())
    return least


def _pooled_surprise(points: Tensor, means: Tensor, statistics: ClassStatistics) -> Tensor:
    """Return the squared distance to the nearest of some means, [M, D], in the metric of one covariance."""
    covariance = mean_within_class_covariance(statistics)
    floor = (POOLED_FLOOR * covariance.diagonal().mean()).clamp_min(_SMALLEST)
    # A covariance rebuilt from half-precision correlations may have eigenvalues a little below 0; the floor is larger.
    root = torch.linalg.cholesky(covariance + floor * torch.eye(len(covariance)).to(covariance))
    moved, centres = (torch.linalg.solve_triangular(root, part.T, upper=False).T for part in (points, means))
    distances: Tensor = torch.cdist(moved, centres, compute_mode="donot_use_mm_for_euclid_dist").square()
    return distances.amin(dim=1)


def _few_images(statistics: ClassStatistics) -> bool:
    return int(statistics.counts.sum()) < statistics.mean.shape[1]


def _surprise(points: Tensor, mean: Tensor, covariance: Tensor, shared: Tensor) -> Tensor:
    ridge = (_RIDGE * shared.diagonal().mean()).clamp_min(_SMALLEST)
    # A covariance rebuilt from half-precision correlations may have eigenvalues a little below 0.
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp_min(0) + ridge
    surprise: Tensor = ((points - mean) @ vectors).square() @ values.reciprocal() + values.log().sum()
    return surprise


def _round_surprise(points: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """The same for a sphere of the mean variance."""
    variance = ((1 + _RIDGE) * covariance.diagonal().mean()).clamp_min(_SMALLEST)
    return (points - mean).square().sum(dim=1) / variance + points.shape[1] * variance.log()


def _present(statistics: ClassStatistics) -> list[int]:
    return [index for index, count in enumerate(statistics.counts.tolist()) if count]
