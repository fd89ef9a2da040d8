import itertools
import math
import statistics as plain
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from inlay.discovery.forgetting import (
    Correction,
    estimated_accuracy,
    estimated_forgetting,
    fit_correction,
    forgetting_on,
)
from inlay.discovery.statistics import ClassStatistics, StatisticsKind, class_statistics


def _randomness(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _statistics(classes: int = 3, size: int = 4, kind: StatisticsKind = "full", seed: int = 0) -> ClassStatistics:
    labels = torch.arange(classes).repeat_interleave(30)
    noise = torch.randn(len(labels), size, generator=_randomness(seed), dtype=torch.float64)
    centres = torch.randn(classes, size, generator=_randomness(seed + 1), dtype=torch.float64)
    return class_statistics(centres[labels] + noise, labels, classes, kind)


def _head(classes: int = 3, size: int = 4, seed: int = 5) -> tuple[Tensor, Tensor]:
    weight = torch.randn(classes, size, generator=_randomness(seed), dtype=torch.float64)
    return weight, torch.randn(classes, generator=_randomness(seed + 1), dtype=torch.float64)


def _scored(weight: Tensor, bias: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda features: features.to(weight.dtype) @ weight.T + bias


def _right_one_by_one(
    statistics: ClassStatistics, weight: Tensor, bias: Tensor, samples: Tensor, labels: Tensor
) -> list[list[float]]:
    """Whether each sample is classified rightly, class by class, with a loop over samples and rows of the head."""
    right: list[list[float]] = [[] for _ in range(len(statistics))]
    for sample, label in zip(samples.double(), labels.tolist(), strict=True):
        scores = [sum(float(w * x) for w, x in zip(row, sample, strict=True)) for row in weight.double()]
        totals = [score + float(b) for score, b in zip(scores, bias, strict=True)]
        right[label].append(float(totals.index(max(totals)) == label))
    return right


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_accuracy_is_that_of_a_loop_over_the_same_samples(kind: StatisticsKind) -> None:
    statistics, weight = _statistics(kind=kind), _statistics().mean.double()
    bias = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    weight = torch.cat([weight, 0.5 * weight[:1] + 0.5 * weight[1:2]])
    bias = torch.cat([bias, bias.new_zeros(1)])
    found = estimated_accuracy(statistics, _scored(weight, bias), _randomness(3), per_class=50)
    right = _right_one_by_one(statistics, weight, bias, *statistics.sample(50, _randomness(3)))
    means = [sum(own) / len(own) for own in right]
    variance = sum(mean * (1 - mean) / 50 for mean in means) / len(means) ** 2
    assert 0 < min(means) < max(means) < 1
    torch.testing.assert_close(found.per_class, torch.tensor(means, dtype=torch.float64))
    assert found.mean == pytest.approx(sum(means) / len(means))
    assert found.standard_error == pytest.approx(math.sqrt(variance))


def _line(first: float, second: float, std: float = 1.0) -> ClassStatistics:
    """Two classes on a line."""
    mean = torch.tensor([[first], [second]], dtype=torch.float32)
    return ClassStatistics(mean, torch.tensor([9, 9]), torch.full((2, 1), std))


def _cut_at(place: float) -> tuple[Tensor, Tensor]:
    """A head that says class 1 above a place on the line."""
    return torch.tensor([[0.0], [1.0]], dtype=torch.float64), torch.tensor([0.0, -place], dtype=torch.float64)


def _normal_cdf(value: float) -> float:
    return (1 + math.erf(value / math.sqrt(2))) / 2


def test_accuracy_of_two_gaussians_is_the_one_computed_by_hand() -> None:
    found = estimated_accuracy(_line(-1, 1), _scored(*_cut_at(0.5)), _randomness(), per_class=20_000)
    expected = [_normal_cdf(1.5), _normal_cdf(0.5)]
    assert found.per_class.tolist() == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 20_000))
    assert found.mean == pytest.approx(sum(expected) / 2, abs=4 * found.standard_error)


def test_the_standard_error_is_the_spread_over_repeats() -> None:
    estimates = [
        estimated_accuracy(_line(-1, 1), _scored(*_cut_at(0.5)), _randomness(seed), 100) for seed in range(300)
    ]
    spread = plain.stdev(estimate.mean for estimate in estimates)
    # The standard deviation of 300 numbers is itself known to 4 %.
    assert spread == pytest.approx(plain.mean(estimate.standard_error for estimate in estimates), rel=0.17)


def test_empty_classes_are_left_out() -> None:
    present = _line(-1, 1)
    mean = torch.cat([present.mean[:1], torch.zeros(1, 1), present.mean[1:]])
    statistics = ClassStatistics(mean, torch.tensor([9, 0, 9]), torch.ones(3, 1))
    weight, bias = _cut_at(0.5)
    head = torch.cat([weight[:1], weight[:1], weight[1:]]), torch.cat([bias[:1], bias[:1] - 9, bias[1:]])
    found = estimated_accuracy(statistics, _scored(*head), _randomness(), 200)
    expected = estimated_accuracy(present, _scored(weight, bias), _randomness(), 200)
    assert found.per_class[1].isnan() and found.mean == expected.mean
    assert found.standard_error == expected.standard_error


def test_forgetting_is_the_difference_of_two_loops_with_common_noise() -> None:
    old, after = _statistics(), _statistics(5, seed=20)
    heads = _head(3), _head(5, seed=8)
    found = estimated_forgetting((old, _scored(*heads[0])), (after, _scored(*heads[1])), _randomness(2), per_class=40)
    noise = torch.randn(3, 40, 4, generator=_randomness(2))
    moved = ClassStatistics.from_tensors({name: tensor[:3] for name, tensor in after.tensors().items()})
    before = _right_one_by_one(old, *heads[0], *old.features_at(noise))
    then = _right_one_by_one(moved, *heads[1], *moved.features_at(noise))
    lost = [[b - a for b, a in zip(own, later, strict=True)] for own, later in zip(before, then, strict=True)]
    means = [sum(own) / 40 for own in lost]
    variance = sum(sum((value - mean) ** 2 for value in own) / 40 for own, mean in zip(lost, means, strict=True)) / 40
    torch.testing.assert_close(found.per_class, torch.tensor(means, dtype=torch.float64))
    assert found.drop == found.uncorrected == pytest.approx(sum(means) / 3)
    assert found.standard_error == pytest.approx(math.sqrt(variance) / 3)


def test_nothing_is_forgotten_where_nothing_changes() -> None:
    statistics, head = _statistics(), _head()
    found = estimated_forgetting((statistics, _scored(*head)), (statistics, _scored(*head)), _randomness())
    assert found.drop == found.standard_error == 0 and torch.equal(found.per_class, torch.zeros(3).double())


def test_drop_of_two_gaussians_is_the_one_computed_by_hand_and_grows_with_the_change() -> None:
    before = (_line(-1, 1), _scored(*_cut_at(0.0)))
    drops = []
    for place in (0.5, 1.0, 2.0, 3.0):
        found = estimated_forgetting(before, (_line(-1, 1), _scored(*_cut_at(place))), _randomness(), per_class=20_000)
        expected = _normal_cdf(1) - (_normal_cdf(1 + place) + _normal_cdf(1 - place)) / 2
        assert found.drop == pytest.approx(expected, abs=4 * found.standard_error)
        drops.append(found.drop)
    assert drops == sorted(drops) and drops[0] > 0


def test_common_noise_makes_the_drop_surer_than_two_estimates() -> None:
    before, after = (_line(-1, 1), _scored(*_cut_at(0.0))), (_line(-1, 1.1), _scored(*_cut_at(0.1)))
    paired = estimated_forgetting(before, after, _randomness())
    apart = [estimated_accuracy(*described, _randomness(seed)) for seed, described in enumerate((before, after))]
    assert paired.standard_error < 0.5 * math.hypot(*(estimate.standard_error for estimate in apart))


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_a_turn_of_features_and_head_together_forgets_nothing(kind: StatisticsKind) -> None:
    statistics, (weight, bias) = _statistics(kind=kind), _head()
    turn = torch.eye(4, dtype=torch.float64)[[2, 0, 3, 1]]
    moved = statistics.mapped(turn, torch.zeros(4))
    before, after = (statistics, _scored(weight, bias)), (moved, _scored(weight @ turn.T, bias))
    found = estimated_forgetting(before, after, _randomness(), None, 4000)
    assert abs(found.drop) < 4 * found.standard_error


def test_a_wider_network_after_the_stage_is_compared_too() -> None:
    statistics, (weight, bias) = _statistics(), _head()
    wider = statistics.mapped(torch.eye(6, 4), torch.zeros(6))
    after = wider, _scored(torch.cat([weight, torch.ones(3, 2)], dim=1), bias)
    found = estimated_forgetting((statistics, _scored(weight, bias)), after, _randomness())
    assert found.drop == pytest.approx(0, abs=1e-3)


def test_correction_of_no_pairs_is_the_identity() -> None:
    assert fit_correction([]) == Correction(1.0, 0.0)
    assert fit_correction([])(0.37) == 0.37


@pytest.mark.parametrize(("slope", "offset"), [(1.0, 0.0), (0.7, 0.04), (1.6, -0.05)])
def test_a_line_is_found_in_spite_of_an_odd_case(slope: float, offset: float) -> None:
    pairs = [(estimated, slope * estimated + offset) for estimated in (-0.1, 0.0, 0.1, 0.2, 0.3, 0.5, 0.6)]
    pairs[3] = (pairs[3][0], 0.95)
    found = fit_correction(pairs)
    assert found.slope == pytest.approx(slope) and found.offset == pytest.approx(offset)


def test_correction_is_that_of_a_slow_reference() -> None:
    values = torch.rand(6, 2, generator=_randomness(4), dtype=torch.float64).tolist()
    pairs = [(0.4 * a, 0.4 * a + 0.1 * b) for a, b in values]
    slopes = [(q[1] - p[1]) / (q[0] - p[0]) for p, q in itertools.combinations(pairs, 2) if abs(q[0] - p[0]) >= 0.02]
    slope = min(2.0, max(0.5, plain.median(slopes)))
    offset = min(0.1, max(-0.1, plain.median(true - slope * estimated for estimated, true in pairs)))
    found = fit_correction(pairs)
    assert 0.5 < slope < 2 and abs(offset) < 0.1
    assert found.slope == pytest.approx(slope) and found.offset == pytest.approx(offset)


def test_few_or_close_cases_give_an_offset_alone() -> None:
    assert fit_correction([(0.25, 0.3125)]) == Correction(1.0, 0.0625)
    close = [(0.100, 0.12), (0.101, 0.18), (0.102, 0.15), (0.103, 0.14)]
    assert fit_correction(close).slope == 1.0
    assert fit_correction([(0.0, 0.0), (0.5, 0.05)]).slope == 1.0


def test_correction_and_corrected_drop_are_bounded() -> None:
    assert fit_correction([(0.1 * step, 0.9 * step) for step in range(5)]).slope == 2.0
    assert fit_correction([(0.1 * step, 0.4 - 0.1 * step) for step in range(5)]).slope == 0.5
    assert fit_correction([(0.0, 0.9)]).offset == 0.1 and fit_correction([(0.9, 0.0)]).offset == -0.1
    assert Correction(2.0, 0.1)(0.9) == 1.0 and Correction(2.0, -0.1)(-0.9) == -1.0


def test_the_correction_changes_the_drop_alone() -> None:
    before, after = (_line(-1, 1), _scored(*_cut_at(0.0))), (_line(-1, 1), _scored(*_cut_at(2.0)))
    plain_estimate = estimated_forgetting(before, after, _randomness())
    corrected = estimated_forgetting(before, after, _randomness(), Correction(0.5, 0.02))
    assert corrected.drop == pytest.approx(0.5 * plain_estimate.drop + 0.02)
    assert corrected.uncorrected == plain_estimate.uncorrected
    assert torch.equal(corrected.per_class, plain_estimate.per_class)


@pytest.mark.parametrize("size", [1e-12, 1e15])
def test_finite_for_extreme_statistics(size: float) -> None:
    statistics = ClassStatistics(torch.tensor([[-size], [size]]), torch.tensor([2, 2]), torch.full((2, 1), size))
    found = estimated_accuracy(statistics, _scored(*_cut_at(0.0)), _randomness())
    assert found.mean == pytest.approx(_normal_cdf(1), abs=4 * found.standard_error)


def test_bad_input_is_refused() -> None:
    statistics, head = _statistics(), _scored(*_head())
    for bad in (_scored(*_head(2)), lambda features: head(features)[1:], lambda features: head(features)[0]):
        with pytest.raises(ValueError, match=r"3 classes or more gives scores \[N, C\]"):
            estimated_accuracy(statistics, bad, _randomness())
    empty = ClassStatistics(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64), torch.ones(3, 4))
    for given, count in [(statistics, 0), (empty, 5)]:
        with pytest.raises(ValueError, match="not empty and samples"):
            estimated_accuracy(given, head, _randomness(), count)
    diagonal = _statistics(kind="diagonal")
    partly = ClassStatistics(diagonal.mean, torch.tensor([0, 30, 30]), diagonal.std)
    with pytest.raises(ValueError, match="same old classes must be empty"):
        estimated_forgetting((diagonal, head), (partly, head), _randomness())
    with pytest.raises(ValueError, match="all 3 old classes; got 2"):
        estimated_forgetting((statistics, head), (_statistics(2), head), _randomness())
    for pair in [(math.nan, 0.0), (0.0, math.inf)]:
        with pytest.raises(ValueError, match="finite"):
            fit_correction([pair])


def test_forgetting_on_images_by_hand() -> None:
    labels = torch.tensor([0, 0, 1, 1, 1])
    # Each image has its own feature before and after, which say what the heads make of it.
    before, after = torch.tensor([0, 0, 1, 1, 0])[:, None], torch.tensor([0, 1, 1, 2, 2])[:, None] + 10

    def head(features: Tensor) -> Tensor:
        return functional.one_hot(features[:, 0] % 10, 3)

    found = forgetting_on((before, head), (after, head), labels)
    # Right before: 1 1 1 1 0, after: 1 0 1 0 0.
    assert found.drop == found.uncorrected == pytest.approx(2 / 5)
    assert found.per_class.tolist() == pytest.approx([1 / 2, 1 / 3])
    assert found.standard_error == pytest.approx((0.4 * 0.6 / 5) ** 0.5)
    with pytest.raises(ValueError, match=r"need features \[n, D\]"):
        forgetting_on((before, head), (after, head), labels[:4])
    with pytest.raises(ValueError, match=r"need features \[n, D\]"):
        forgetting_on((before, head), (after[:3], head), labels)
    corrected = forgetting_on((before, head), (after, head), labels, Correction(0.5, 0.1))
    assert corrected.drop == pytest.approx(0.3) and corrected.uncorrected == pytest.approx(0.4)
