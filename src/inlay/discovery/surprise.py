"""How surprising features are under the Gaussians of known classes.

Correlations count where each class has its own. Pooled ones are for many features and few images, and there they would
have to be shrunk nearly to nothing before they helped.
"""

import torch
from torch import Tensor

from inlay.discovery.statistics import ClassStatistics
from inlay.discovery.whitening import mean_within_class_covariance

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
    centre, shared = means.mean(dim=0), mean_within_class_covariance(_usable(statistics))
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


def _usable(statistics: ClassStatistics) -> ClassStatistics:
    return statistics if statistics.kind == "full" else statistics.variances()


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
