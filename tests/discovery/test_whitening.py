import math

import pytest
import torch
from torch import Tensor

from inlay.discovery.statistics import ClassStatistics, class_statistics
from inlay.discovery.whitening import mean_within_class_covariance, whitening

SIZE = 5


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _covariance(points: Tensor) -> list[list[float]]:
    rows = points.tolist()
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return [
        [sum((row[i] - means[i]) * (row[j] - means[j]) for row in rows) / (len(rows) - 1) for j in range(len(means))]
        for i in range(len(means))
    ]


def test_within_class_covariance_is_the_mean_over_classes_that_have_samples() -> None:
    features, labels = _normal(40, SIZE, seed=0), torch.arange(40) % 2 * 2
    statistics = class_statistics(features.float(), labels, 3, "full", allow_empty=True)
    first, second = (torch.tensor(_covariance(features[labels == label])) for label in (0, 2))
    found = mean_within_class_covariance(statistics)
    torch.testing.assert_close(found.float(), (first + second) / 2, rtol=5e-3, atol=5e-3)


def test_without_samples_there_is_no_covariance() -> None:
    empty = torch.zeros(2, SIZE)
    statistics = ClassStatistics(empty, torch.zeros(2, dtype=torch.int64), empty)
    with pytest.raises(ValueError, match="no class with samples"):
        mean_within_class_covariance(statistics)


def test_spread_within_classes_becomes_alike_in_all_directions() -> None:
    root = _normal(SIZE, SIZE, seed=1)
    within = root @ root.T
    _, matrix = whitening(within, _normal(50, SIZE, seed=2), SIZE, shrinkage=1e-9)
    torch.testing.assert_close(matrix.T @ within @ matrix, torch.eye(SIZE, dtype=torch.float64), rtol=1e-5, atol=1e-5)


def test_kept_directions_are_those_of_greatest_variance_after_whitening() -> None:
    # By hand: along the axes W has variances 1, 4, 1, and the features 9, 16, 1; whitened, 9, 4, 1.
    within = torch.diag(torch.tensor([1.0, 4.0, 1.0]))
    features = torch.tensor([[3.0, 4, 1], [-3, 4, 1], [3, -4, 1], [-3, -4, 1], [3, 4, -1], [-3, 4, -1]])
    features = torch.cat([features, torch.tensor([[3.0, -4, -1], [-3, -4, -1]])]) + torch.tensor([10.0, 20, 30])
    centre, matrix = whitening(within, features, 2, shrinkage=1e-9)
    assert centre.tolist() == pytest.approx([10, 20, 30])
    assert matrix.shape == (3, 2) and matrix.dtype == torch.float32
    expected = torch.tensor([[1.0, 0], [0, 0.5], [0, 0]])
    torch.testing.assert_close(matrix.abs(), expected, rtol=1e-5, atol=1e-5)


def test_shrinkage_is_relative_to_the_mean_variance() -> None:
    within = torch.diag(torch.tensor([0.0, 6.0], dtype=torch.float64))
    features = torch.tensor([[1.0, 0], [-1, 0], [0, 3], [0, -3]], dtype=torch.float64)
    _, matrix = whitening(within, features, 2, shrinkage=0.5)
    # The mean variance is 3, so 1.5 is added to each: whitened variances .5 / 1.5 and 4.5 / 7.5.
    lengths = matrix.abs().sum(dim=0).tolist()
    assert lengths == pytest.approx([1 / math.sqrt(7.5), 1 / math.sqrt(1.5)])


def test_more_directions_than_features_have_means_all() -> None:
    _, matrix = whitening(torch.eye(SIZE), _normal(3, SIZE, seed=3), 100)
    assert matrix.shape == (SIZE, SIZE)
    assert torch.isfinite(matrix).all()


def test_without_spread_within_classes_features_are_only_turned() -> None:
    _, matrix = whitening(torch.zeros(SIZE, SIZE), _normal(9, SIZE, seed=5), SIZE)
    torch.testing.assert_close(matrix.T @ matrix, torch.eye(SIZE, dtype=torch.float64))


def test_bad_input_is_refused() -> None:
    features = _normal(4, SIZE, seed=4)
    with pytest.raises(ValueError, match="need W"):
        whitening(torch.eye(SIZE + 1), features, 2)
    with pytest.raises(ValueError, match="need W"):
        whitening(torch.eye(SIZE), features[:0], 2)
    with pytest.raises(ValueError, match="dimensions"):
        whitening(torch.eye(SIZE), features, 0)
    with pytest.raises(ValueError, match="shrinkage"):
        whitening(torch.eye(SIZE), features, 2, shrinkage=0.0)
