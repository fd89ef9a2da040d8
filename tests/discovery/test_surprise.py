import math

import pytest
import torch
from torch import Tensor

from inlay.discovery.statistics import ClassStatistics, class_statistics
from inlay.discovery.surprise import class_surprise, common_surprise


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _few() -> ClassStatistics:
    """Two classes of six images each with twenty features, and one without images."""
    labels = torch.arange(12) % 2
    return class_statistics(_normal(12, 20, seed=0) + 5 * labels[:, None], labels, 3, allow_empty=True)


def _on_sphere(point: Tensor, mean: Tensor, variance: float) -> float:
    return math.fsum(
        (a - b) ** 2 / variance + math.log(variance) for a, b in zip(point.tolist(), mean.tolist(), strict=True)
    )


def test_with_fewer_images_than_features_classes_are_spheres() -> None:
    statistics, points = _few(), 3 * _normal(5, 20, seed=1)
    spreads = [float(statistics.covariance(index).diagonal().mean()) for index in (0, 1)]
    variance = 1.01 * sum(spreads) / 2
    means = statistics.mean[:2].double()
    slow = [min(_on_sphere(point, mean, variance) for mean in means) for point in points]
    assert class_surprise(points, statistics, 0.1).tolist() == pytest.approx(slow, rel=1e-6)
    centre = means.mean(dim=0)
    between = float(((means - centre) ** 2).mean())
    slow = [_on_sphere(point, centre, 1.01 * (sum(spreads) / 2 + between)) for point in points]
    assert common_surprise(points, statistics).tolist() == pytest.approx(slow, rel=1e-6)


def test_pooled_correlations_make_one_metric_for_all_classes() -> None:
    labels = torch.arange(120) % 3
    features = _normal(120, 4, seed=3) @ _normal(4, 4, seed=4) + 4 * labels[:, None]
    pooled, points = class_statistics(features, labels, 4, "pooled", allow_empty=True), 3 * _normal(6, 4, seed=5)
    assert pooled.correlation is not None
    typical = [sum(float(pooled.std[index, d]) ** 2 for index in range(3)) / 3 for d in range(4)]
    within = torch.tensor(typical, dtype=torch.float64).sqrt().diag()
    within = within @ pooled.correlation.double() @ within
    inverse = (within + within.diagonal().mean() * torch.eye(4).double()).inverse()
    means = [pooled.mean[index].double() for index in range(3)]
    centre = (means[0] + means[1] + means[2]) / 3
    nearest, common = class_surprise(points, pooled, 0.1), common_surprise(points, pooled)
    for point, to_class, to_all in zip(points, nearest.tolist(), common.tolist(), strict=True):
        assert to_class == pytest.approx(min(float((point - m) @ inverse @ (point - m)) for m in means), rel=1e-9)
        assert to_all == pytest.approx(float((point - centre) @ inverse @ (point - centre)), rel=1e-9)


def test_without_correlations_classes_are_known_by_their_variances() -> None:
    labels = torch.arange(120) % 3
    features = _normal(120, 4, seed=3) @ _normal(4, 4, seed=4) + 4 * labels[:, None]
    points = 3 * _normal(6, 4, seed=5)
    diagonal = class_statistics(features, labels, 3, "diagonal")
    variances = diagonal.std.double().square()
    shared = variances.mean(dim=0)
    ridge = 0.01 * shared.mean().item()
    for point, found in zip(points, class_surprise(points, diagonal, 0.1).tolist(), strict=True):
        surprises = []
        for index in range(3):
            spread = (0.9 * variances[index] + 0.1 * shared + ridge).tolist()
            away = (point - diagonal.mean[index].double()).tolist()
            surprises.append(math.fsum(a * a / s + math.log(s) for a, s in zip(away, spread, strict=True)))
        assert found == pytest.approx(min(surprises), rel=1e-9)


def test_held_out_images_are_hardly_more_surprising_than_those_described() -> None:
    """A covariance of few images is flat in most directions, and any other image is far outside of it."""
    images = _normal(80, 100, seed=2)
    statistics = class_statistics(images[:40], torch.zeros(40, dtype=torch.int64), 1)
    own, other = (class_surprise(part, statistics, 0.1).median() for part in (images[:40], images[40:]))
    far = class_surprise(images[40:] + 2, statistics, 0.1).min()
    assert other - own < 0.5 * (far - own)
