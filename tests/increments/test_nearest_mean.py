import math

import pytest
import torch
from torch import Tensor

from inlay.increments.nearest_mean import NearestMean, class_means


def _random(seed: int, rows: int = 20, dimensions: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, dimensions, generator=generator, dtype=torch.float64)


def _unit(row: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row]


def _mean(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def _slow_mean(features: Tensor, labels: Tensor, label: int, flipped: Tensor | None) -> list[float]:
    own = [index for index, other in enumerate(labels.tolist()) if other == label]
    mean = _mean([_unit(features[index].tolist()) for index in own])
    if flipped is not None:
        mirrored = _mean([_unit(flipped[index].tolist()) for index in own])
        mean = [(a + b) / 2 for a, b in zip(mean, mirrored, strict=True)]
    return _unit(mean)


@pytest.mark.parametrize("flipped", [None, _random(1)])
def test_means_equal_the_loops(flipped: Tensor | None) -> None:
    features, labels = _random(0), torch.arange(20) % 3
    found = class_means(features, labels, 3, flipped)
    expected = torch.tensor([_slow_mean(features, labels, label, flipped) for label in range(3)], dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_means_computed_by_hand() -> None:
    # The long feature counts no more than the short one: the mean points half-way.
    features, labels = torch.tensor([[9.0, 0.0], [0.0, 1.0], [0.0, -2.0]]), torch.tensor([0, 0, 1])
    half = math.sqrt(0.5)
    torch.testing.assert_close(class_means(features, labels, 2), torch.tensor([[half, half], [0.0, -1.0]]))
    flipped = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, -1.0]])
    expected = torch.tensor([[3 / math.sqrt(10), 1 / math.sqrt(10)], [0.0, -1.0]])
    torch.testing.assert_close(class_means(features, labels, 2, flipped), expected)


def test_scores_equal_the_loops() -> None:
    means, features = class_means(_random(2), torch.arange(20) % 5, 5), 3 * _random(3)
    expected = [
        [-sum((a - b) ** 2 for a, b in zip(_unit(row), mean, strict=True)) for mean in means.tolist()]
        for row in features.tolist()
    ]
    torch.testing.assert_close(NearestMean(means)(features), torch.tensor(expected, dtype=torch.float64))


def test_an_exemplar_alone_is_its_own_mean() -> None:
    features = _random(4, rows=6)
    scores = NearestMean(class_means(features, torch.arange(6), 6))(7 * features)
    torch.testing.assert_close(scores.diagonal(), torch.zeros(6, dtype=torch.float64))
    assert scores.argmax(dim=1).tolist() == list(range(6))


def test_a_class_without_exemplars_is_never_predicted() -> None:
    means = class_means(_random(5), torch.arange(20) % 2 * 2, 4)
    scores = NearestMean(means)(-means[:1])
    assert scores[:, [1, 3]].isneginf().all()
    assert scores[:, [0, 2]].isfinite().all()
    assert scores[0, 0].item() == pytest.approx(-4)


def test_means_travel_with_the_state() -> None:
    means = class_means(_random(6), torch.arange(20) % 2, 2)
    other = NearestMean(torch.zeros_like(means))
    other.load_state_dict(NearestMean(means).state_dict())
    assert other.means.equal(means)
    assert not list(other.parameters())


def test_finite_at_zero_and_at_extremes() -> None:
    features = torch.tensor([[0.0, 0.0], [1e18, -1e18], [1e-30, 0.0]])
    means = class_means(features, torch.tensor([0, 0, 1]), 2)
    assert means.isfinite().all()
    assert NearestMean(means)(features).isfinite().all()


def test_half_precision_is_raised() -> None:
    means = class_means(_random(7).bfloat16(), torch.arange(20) % 2, 2)
    assert means.dtype == torch.float32
    assert NearestMean(means)(_random(8).bfloat16()).dtype == torch.float32


def test_what_does_not_fit_is_refused() -> None:
    labels = torch.zeros(20, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"\[N, D\]"):
        class_means(_random(9), labels[1:], 1)
    with pytest.raises(ValueError, match="flipped"):
        class_means(_random(9), labels, 1, _random(9, rows=19))
    with pytest.raises(ValueError, match=r"0\.\.0"):
        class_means(_random(9), labels + 1, 1)
    with pytest.raises(ValueError, match=r"\[K, D\]"):
        NearestMean(torch.ones(3))
