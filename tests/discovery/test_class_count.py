import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.metrics import silhouette_score
from torch import Tensor

from inlay.discovery import class_count as module
from inlay.discovery.class_count import CountSettings, candidate_counts, estimate_class_count
from inlay.discovery.class_count_interval import (
    UNCALIBRATED,
    ClassCount,
    CurvePoint,
    StabilityPoint,
    Widening,
    bounded,
    calibrate,
)

_SHORT = CountSettings(most=8, images_per_class=15, subsamples=3)


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _blobs(sizes: list[int], spread: float, seed: int = 0, dimensions: int = 16) -> Tensor:
    truth = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    noise = torch.randn(len(truth), dimensions, generator=_seeded(seed))
    return 6 * torch.eye(dimensions)[truth] + spread * noise


@pytest.mark.parametrize("classes", [2, 3, 5, 7])
def test_separated_blobs_are_counted(classes: int) -> None:
    found = estimate_class_count(_blobs([30] * classes, 0.5, classes), _seeded(), _SHORT)
    assert (found.estimate, found.low, found.high) == (classes, classes, classes)


def test_twelve_blobs_are_counted_within_one() -> None:
    found = estimate_class_count(
        _blobs([25] * 12, 0.5), _seeded(), CountSettings(most=14, images_per_class=15, subsamples=3)
    )
    assert abs(found.estimate - 12) <= 1
    assert found.low <= 12 <= found.high


def test_classes_of_unequal_sizes_are_counted() -> None:
    assert estimate_class_count(_blobs([200, 60, 20], 0.5), _seeded(), _SHORT).estimate == 3


@pytest.mark.parametrize("shape", ["round", "long", "far"])
def test_one_blob_is_one_class(shape: str) -> None:
    features = torch.randn(120, 16, generator=_seeded(1))
    if shape != "round":
        features = features * torch.linspace(3, 0.2, 16) + (10 if shape == "far" else 0)
    assert estimate_class_count(features, _seeded(), _SHORT).estimate == 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_interval_covers_overlapping_classes(seed: int) -> None:
    found = estimate_class_count(_blobs([30] * 5, 1.8, seed), _seeded(seed), _SHORT).widened(UNCALIBRATED)
    assert found.low <= 5 <= found.high <= 2 * found.low


def test_cluster_far_smaller_than_the_largest_is_not_counted() -> None:
    features = _blobs([60, 60, 1], 0.3)
    assert estimate_class_count(features, _seeded(), _SHORT).estimate == 2
    assert module._counted(torch.tensor([0] * 100 + [1] * 3 + [2] * 2), 0.02) == 2


def test_repeated_images_count_once() -> None:
    found = estimate_class_count(_blobs([1, 1, 1], 0.5).repeat(30, 1), _seeded(), _SHORT)
    assert found.estimate == 3


@pytest.mark.parametrize("features", [torch.ones(50, 4), torch.zeros(50, 4), torch.randn(1, 4), torch.randn(5, 4)])
def test_nothing_to_tell_apart_is_one_class(features: Tensor) -> None:
    assert estimate_class_count(features, _seeded()) == ClassCount(1, 1, 1, ())


def test_few_images_try_few_counts() -> None:
    found = estimate_class_count(_blobs([5, 5], 0.3), _seeded())
    assert [point.k for point in found.curve] == [2]
    assert found.estimate == 2


@pytest.mark.parametrize("spread", [0.01, 0.3])
def test_two_tight_classes_are_no_long_blob(spread: float) -> None:
    assert estimate_class_count(_blobs([30, 30], spread), _seeded(), _SHORT).estimate == 2


def test_long_blob_is_no_two_classes() -> None:
    line = torch.randn(200, 1, generator=_seeded(4)) * torch.eye(4)[:1] + 8 * torch.eye(4)[1:2]
    blob = line + 0.01 * torch.randn(200, 4, generator=_seeded(5))
    assert estimate_class_count(blob, _seeded(), _SHORT).estimate == 1


def test_counts_to_try() -> None:
    assert candidate_counts(5, CountSettings()) == []
    assert candidate_counts(100, CountSettings()) == [2, 3, 4]
    counts = candidate_counts(5000, CountSettings())
    assert counts[:19] == list(range(2, 21))
    assert 55 <= counts[-1] <= 60
    steps = [after / before for before, after in pairwise(counts[18:])]
    assert min(steps) > 1
    assert max(steps) < 1.11


def test_generator_decides_everything() -> None:
    features = _blobs([20] * 3, 2.5)
    torch.manual_seed(1)
    first = estimate_class_count(features, _seeded(5), _SHORT)
    torch.manual_seed(2)
    assert estimate_class_count(features, _seeded(5), _SHORT) == first
    assert estimate_class_count(features, _seeded(6), _SHORT).curve != first.curve


def test_length_of_features_does_not_matter() -> None:
    features = _blobs([30] * 3, 0.5)
    lengths = torch.rand(len(features), 1, generator=_seeded(3)) * 100 + 1
    assert estimate_class_count(features * lengths, _seeded(), _SHORT).estimate == 3


def test_score_of_the_curve_is_the_formula() -> None:
    settings = CountSettings(most=5, subsamples=3, count_weight=0.2, silhouette_weight=0.7)
    found = estimate_class_count(_blobs([40] * 4, 1.0), _seeded(), settings)
    for point in found.curve:
        assert isinstance(point, StabilityPoint)
        expected = math.log(point.stability) + 0.7 * math.log(point.silhouette) + 0.2 * math.log(point.k)
        assert point.score == pytest.approx(expected)


def _slow_rand_index(first: list[int], second: list[int]) -> float:
    """Adjusted Rand index by counting pairs of images."""
    pairs = [(i, j) for i in range(len(first)) for j in range(i)]
    in_first = sum(first[i] == first[j] for i, j in pairs)
    in_second = sum(second[i] == second[j] for i, j in pairs)
    both = sum(first[i] == first[j] and second[i] == second[j] for i, j in pairs)
    chance = in_first * in_second / len(pairs)
    return (both - chance) / ((in_first + in_second) / 2 - chance)


def test_stability_is_the_mean_agreement_with_the_others() -> None:
    labels = [torch.randint(3, (30,), generator=_seeded(seed)) for seed in range(3)]
    labels.append(labels[0].clone())
    for index, found in enumerate(module._stabilities(labels)):
        others = [each.tolist() for other, each in enumerate(labels) if other != index]
        expected = [_slow_rand_index(labels[index].tolist(), other) for other in others]
        assert found == pytest.approx(float(np.mean(expected)))


def test_silhouette_is_that_of_the_points() -> None:
    points = torch.randn(60, 5, generator=_seeded())
    labels = torch.randint(4, (60,), generator=_seeded(1))
    expected = silhouette_score(points.numpy(), labels.numpy())
    assert module._silhouette(module._distances(points), labels) == pytest.approx(expected, abs=1e-5)
    assert module._silhouette(module._distances(points), torch.zeros(60)) == 0


def test_prepared_points_keep_the_distances_of_directions() -> None:
    features = torch.randn(20, 6, generator=_seeded(), dtype=torch.float64)
    directions = features / features.norm(dim=1, keepdim=True)
    torch.testing.assert_close(
        torch.cdist(module._prepared(features, 6), module._prepared(features, 6)).double(),
        torch.cdist(directions, directions),
        atol=1e-3,
        rtol=1e-3,
    )
    # Fewer axes keep the most variance that so many can.
    variances = torch.linalg.svdvals(directions - directions.mean(dim=0)).square()
    assert float(module._prepared(features, 2).square().sum()) == pytest.approx(float(variances[:2].sum()), rel=1e-5)


@pytest.mark.parametrize("features", [torch.zeros(0, 3), torch.zeros(3), torch.full((5, 2), torch.nan)])
def test_bad_features_are_refused(features: Tensor) -> None:
    with pytest.raises(ValueError, match="finite"):
        estimate_class_count(features, _seeded())


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        CountSettings(subsamples=1)


def test_calibration_takes_the_extremes_of_few_trials() -> None:
    assert calibrate([(5, 4), (4, 5), (3, 3)]) == Widening(4 / 5, 5 / 4)
    assert calibrate([(5, 4), (6, 4)]) == Widening(1.0, 6 / 4)


def test_calibration_leaves_out_the_tails_of_many_trials() -> None:
    errors = [(true, 10) for true in range(1, 20)]
    # Of 19 trials 20 % may lie outside of (n + 1) · 10 % = the second on each side.
    assert calibrate(errors, coverage=0.8) == Widening(2 / 10, 18 / 10)
    within = [2 <= true <= 18 for true, _ in errors]
    assert np.mean(within) >= 0.8


@pytest.mark.parametrize("errors", [[], [(0, 2)], [(2, 0)]])
def test_calibration_refuses_what_it_cannot_use(errors: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="trials"):
        calibrate(errors)
    with pytest.raises(ValueError, match="coverage"):
        calibrate([(2, 2)], coverage=1.0)


def test_widening_refuses_factors_out_of_order() -> None:
    with pytest.raises(ValueError, match="lower"):
        Widening(1.1, 1.2)


def test_a_count_is_multiplied_with_its_interval() -> None:
    curve = tuple(CurvePoint(k, 0.0) for k in range(1, 31))
    count = ClassCount(10, 8, 13, curve)
    assert count.times(1.0) == count
    assert count.times(1.5) == ClassCount(15, 12, 20, curve)
    assert count.times(0.5) == ClassCount(5, 4, 7, curve)
    assert count.times(0.01) == ClassCount(1, 1, 1, curve)
    # No more than were tried, and never an interval that its estimate is not in.
    most = count.times(4.0)
    assert most.estimate == 30 and most.low <= 30 <= most.high <= 2 * most.low


def test_widened_interval_holds_what_calibration_saw() -> None:
    count = ClassCount(10, 9, 11, ())
    assert count.widened(Widening(0.75, 1.25)) == ClassCount(10, 7, 13, ())
    assert ClassCount(5, 5, 5, ()).widened(Widening(1.0, 6 / 5)) == ClassCount(5, 5, 6, ())


def test_interval_beyond_twice_is_flagged() -> None:
    loose = ClassCount(10, 9, 11, ()).widened(Widening(0.3, 2.0))
    assert (loose.low, loose.high, loose.loose) == (3, 20, True)
    assert not ClassCount(1, 1, 1, ()).widened(UNCALIBRATED).loose


@pytest.mark.parametrize("estimate", range(1, 20))
def test_widened_interval_keeps_the_spread_within_twice(estimate: int) -> None:
    for low in range(math.ceil(estimate / 2), estimate + 1):
        for high in range(estimate, 2 * low + 1):
            wide = ClassCount(estimate, low, high, ()).widened(UNCALIBRATED)
            assert wide.low <= low <= high <= wide.high <= 2 * wide.low
            assert not wide.loose
    assert ClassCount(10, 10, 10, ()).widened(UNCALIBRATED) == ClassCount(10, 8, 15, ())


@pytest.mark.parametrize("estimate", range(1, 40))
def test_bounded_interval_holds_the_estimate_within_twice(estimate: int) -> None:
    for low in range(1, estimate + 1):
        for high in range(estimate, 3 * estimate + 2):
            cut_low, cut_high = bounded(estimate, low, high)
            assert low <= cut_low <= estimate <= cut_high <= high
            assert cut_high <= 2 * cut_low
            if high <= 2 * low:
                assert (cut_low, cut_high) == (low, high)
