import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from inlay.discovery.statistics import ClassStatistics, StatisticsKind, class_statistics
from inlay.discovery.triage import (
    NoveltyRule,
    Triage,
    calibrate_threshold,
    estimated_new_share,
    loneliness,
    novelty_scores,
    replay_stretch,
    replayed_scores,
)
from inlay.errors import InlayError

_RULES: tuple[NoveltyRule, ...] = get_args(NoveltyRule)


def _randomness(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=_randomness(seed), dtype=torch.float64)


def _statistics(kind: StatisticsKind = "full", classes: int = 3, size: int = 4) -> ClassStatistics:
    labels = torch.arange(classes).repeat_interleave(40)
    stretch = 0.5 + torch.rand(classes, size, generator=_randomness(1), dtype=torch.float64)
    features = 4 * _normal(classes, size, seed=2)[labels] + stretch[labels] * _normal(len(labels), size, seed=3)
    return class_statistics(features, labels, classes, kind)


def _head(statistics: ClassStatistics) -> tuple[Tensor, Tensor]:
    mean = statistics.mean.double()
    return mean, -mean.square().sum(dim=1) / 2


def _density(point: Tensor, mean: Tensor, covariance: Tensor) -> float:
    """-2 log of a Gaussian density but for its constant, by an explicit inverse."""
    inverse, total = torch.linalg.inv(covariance), 0.0
    for i in range(len(mean)):
        for j in range(len(mean)):
            total += float((point[i] - mean[i]) * inverse[i, j] * (point[j] - mean[j]))
    return total + math.log(float(torch.linalg.det(covariance)))


def _one_by_one(
    features: Tensor, statistics: ClassStatistics, rule: NoveltyRule, reference: Tensor, shrinkage: float
) -> list[float]:
    """All rules by loops over images, classes and dimensions."""
    weight, bias = _head(statistics)
    classes, size = statistics.mean.shape
    shared = sum((statistics.covariance(k) for k in range(classes)), torch.zeros(size, size).double()) / classes
    ridge = 0.01 * sum(float(shared[i, i]) for i in range(size)) / size * torch.eye(size).double()
    means = statistics.mean.double()
    centre = sum((means[k] for k in range(classes)), torch.zeros(size).double()) / classes
    between = torch.zeros(size, size).double()
    for k in range(classes):
        between += torch.outer(means[k] - centre, means[k] - centre) / classes
    found = []
    for x in features.double():
        mixed = [(1 - shrinkage) * statistics.covariance(k) + shrinkage * shared + ridge for k in range(classes)]
        nearest = min(_density(x, means[k], mixed[k]) for k in range(classes))
        logits = [sum(float(w * v) for w, v in zip(weight[k], x, strict=True)) + float(bias[k]) for k in range(classes)]
        total = math.fsum(math.exp(logit - max(logits)) for logit in logits)
        value = {
            "mahalanobis": nearest,
            "relative": nearest - _density(x, centre, shared + between + ridge),
            "energy": -max(logits) - math.log(total),
            "softmax": math.log(total),
            "knn-to-samples": sorted(float((x - sample).square().sum().sqrt()) for sample in reference)[4],
        }
        found.append(value[rule])
    return found


@pytest.mark.parametrize("rule", _RULES[:-1])
@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_scores_are_those_of_loops(kind: StatisticsKind, rule: NoveltyRule) -> None:
    statistics, features, reference = _statistics(kind), 3 * _normal(6, 4, seed=4), _normal(9, 4, seed=5)
    for shrinkage in (0.0, 0.3, 1.0):
        found = novelty_scores(features, statistics, *_head(statistics), rule, reference=reference, shrinkage=shrinkage)
        expected = _one_by_one(features, statistics, rule, reference, shrinkage)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_combined_scores_are_standardised_sums() -> None:
    statistics, features, reference = _statistics(), 3 * _normal(6, 4, seed=4), 2 * _normal(9, 4, seed=5)
    expected = torch.zeros(6, dtype=torch.float64)
    rules: tuple[NoveltyRule, ...] = ("mahalanobis", "relative", "energy")
    for rule in rules:
        usual, own = (_one_by_one(given, statistics, rule, reference, 0.1) for given in (reference, features))
        mean = sum(usual) / 9
        std = math.sqrt(sum((value - mean) ** 2 for value in usual) / 9)
        expected += torch.tensor([(value - mean) / std for value in own], dtype=torch.float64)
    found = novelty_scores(features, statistics, *_head(statistics), "combined", reference=reference)
    torch.testing.assert_close(found, expected)


def _line() -> tuple[ClassStatistics, Tensor, Tensor]:
    """Two classes at -1 and 1 on a line, of standard deviation 1, and the head that cuts between them."""
    statistics = ClassStatistics(torch.tensor([[-1.0], [1.0]]), torch.tensor([5, 5]), torch.ones(2, 1))
    return statistics, torch.tensor([[-1.0], [1.0]]), torch.zeros(2)


def test_scores_computed_by_hand() -> None:
    points = torch.tensor([[0.0], [1.0], [4.0]])
    variance = 1.01
    mahalanobis = [1 / variance + math.log(variance), math.log(variance), 9 / variance + math.log(variance)]
    common = [math.log(2.01), 1 / 2.01 + math.log(2.01), 16 / 2.01 + math.log(2.01)]
    energy = [-math.log(2), -math.log(2 * math.cosh(1)), -math.log(2 * math.cosh(4))]
    expected = {
        "mahalanobis": mahalanobis,
        "relative": [a - b for a, b in zip(mahalanobis, common, strict=True)],
        "energy": energy,
        "softmax": [math.log(2), math.log(1 + math.exp(-2)), math.log(1 + math.exp(-8))],
    }
    rules: tuple[NoveltyRule, ...] = ("mahalanobis", "relative", "energy", "softmax")
    for rule in rules:
        assert novelty_scores(points, *_line(), rule).tolist() == pytest.approx(expected[rule], rel=1e-9)
    near = novelty_scores(points, *_line(), "knn-to-samples", reference=torch.tensor([[0.5], [3.0]]), neighbours=2)
    assert near.tolist() == [3.0, 2.0, 3.5]


def test_the_further_an_image_the_newer() -> None:
    points = torch.linspace(3, 30, 20)[:, None]
    reference = torch.linspace(-3, 3, 50)[:, None]
    rules: tuple[NoveltyRule, ...] = ("mahalanobis", "knn-to-samples")
    for rule in rules:
        scores = novelty_scores(points, *_line(), rule, reference=reference)
        assert bool((scores.diff() > 0).all())


def test_a_confident_head_scores_low() -> None:
    points = torch.linspace(0, 5, 20)[:, None]
    rules: tuple[NoveltyRule, ...] = ("energy", "softmax")
    for rule in rules:
        assert bool((novelty_scores(points, *_line(), rule).diff() < 0).all())


def test_empty_classes_count_for_nothing() -> None:
    statistics = _statistics("diagonal")
    weight, bias = _head(statistics)
    mean, std = (torch.cat([own, torch.ones(1, 4)]) for own in (statistics.mean, statistics.std))
    longer = ClassStatistics(mean, torch.cat([statistics.counts, torch.zeros(1, dtype=torch.int64)]), std)
    features = _normal(5, 4)
    for rule in _RULES:
        pair = (novelty_scores(features, own, weight, bias, rule, reference=features) for own in (statistics, longer))
        torch.testing.assert_close(*pair, rtol=0, atol=0)


@pytest.mark.parametrize("rule", _RULES)
def test_finite_at_extremes(rule: NoveltyRule) -> None:
    size = torch.tensor([[-1.0], [1.0]])
    narrow = ClassStatistics(1e-20 * size, torch.tensor([2, 2]), torch.zeros(2, 1))
    wide = ClassStatistics(1e15 * size, torch.tensor([2, 2]), torch.full((2, 1), 1e15))
    points = torch.tensor([[-1e30], [0.0], [1e-30], [1e30]])
    for statistics in (narrow, wide):
        reference = torch.linspace(-1, 1, 6)[:, None]
        scores = novelty_scores(points, statistics, 1e3 * size, torch.zeros(2), rule, reference=reference)
        assert scores.dtype == torch.float64 and bool(scores.isfinite().all())


def test_correlations_of_half_precision_do_not_break_the_density() -> None:
    base = _normal(50, 1, seed=8)
    features = torch.cat([base, base + 1e-4 * _normal(50, 1, seed=9), 1e4 * _normal(50, 1, seed=10)], dim=1)
    statistics = class_statistics(features, torch.zeros(50, dtype=torch.int64), 1)
    assert bool(novelty_scores(features, statistics, torch.ones(1, 3), torch.zeros(1), "mahalanobis").isfinite().all())


def test_calibration_is_the_corrected_quantile() -> None:
    scores = torch.arange(1.0, 20.0)[torch.randperm(19, generator=_randomness())]
    assert [calibrate_threshold(scores, error) for error in (0.05, 0.1, 0.5, 0.95, 0.99)] == [19, 18, 10, 1, 1]
    for error in (0.05, 0.13, 0.4, 0.77):
        rank = min(rank for rank in range(1, 20) if rank >= 20 * (1 - error) - 1e-9)
        assert calibrate_threshold(scores, error) == sorted(scores.tolist())[rank - 1]


def test_too_few_images_to_promise_so_small_an_error() -> None:
    assert calibrate_threshold(torch.arange(99.0), 0.01) == 98
    with pytest.raises(InlayError, match="from 98 known images; give at least 99 or"):
        calibrate_threshold(torch.arange(98.0), 0.01)
    with pytest.raises(InlayError, match="from 0 known images"):
        calibrate_threshold(torch.zeros(0), 0.5)


@pytest.mark.parametrize("count", [19, 50])
def test_the_promised_error_holds_on_fresh_images(count: int) -> None:
    error, trials = 0.1, 2000
    drawn = _normal(trials, count + 1, seed=11).exp()
    exceeded = [row[-1] > calibrate_threshold(row[:-1], error) for row in drawn]
    rate = sum(map(float, exceeded)) / trials
    exact = 1 - math.ceil(round((count + 1) * (1 - error), 9)) / (count + 1)
    assert exact <= error
    assert rate == pytest.approx(exact, abs=3 * math.sqrt(exact * (1 - exact) / trials))


@pytest.mark.parametrize("rule", _RULES)
def test_replayed_scores_calibrate_for_features_that_are_gaussian(rule: NoveltyRule) -> None:
    statistics = _statistics()
    head, reference = _head(statistics), statistics.sample(100, _randomness(12))[0]
    replayed = replayed_scores(statistics, *head, _randomness(13), rule, per_class=2000, reference=reference)
    threshold = calibrate_threshold(replayed, 0.1)
    fresh, _ = statistics.sample(2000, _randomness(14))
    above = novelty_scores(fresh, statistics, *head, rule, reference=reference) > threshold
    # Both the threshold and the share above it come from 6,000 draws.
    assert above.double().mean().item() == pytest.approx(0.1, abs=3 * math.sqrt(2 * 0.09 / 6000))


def test_replayed_scores_are_those_of_drawn_features() -> None:
    statistics, randomness = _statistics(), _randomness(15)
    reference, drawn = statistics.sample(20, randomness)[0], statistics.sample(20, randomness)[0]
    expected = novelty_scores(drawn, statistics, *_head(statistics), reference=reference)
    found = replayed_scores(statistics, *_head(statistics), _randomness(15), per_class=20)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_stretch_carries_the_threshold_of_real_images_over() -> None:
    replayed = torch.arange(1.0, 20.0)
    real = 10 + 3 * (replayed - 10)
    stretch = replay_stretch(real, replayed, 0.1)
    assert stretch == pytest.approx(3)
    assert calibrate_threshold(replayed, 0.1, stretch) == pytest.approx(calibrate_threshold(real, 0.1))
    assert calibrate_threshold(100 + 2 * replayed, 0.1, stretch) == pytest.approx(120 + 3 * 16)
    assert replay_stretch(replayed - 50, replayed, 0.1) == 1
    assert math.isfinite(replay_stretch(real, torch.zeros(19), 0.1))


def test_loneliness_is_that_of_loops() -> None:
    features = _normal(12, 3, seed=16)
    unit = [row / row.norm() for row in features]
    near = [sorted((float((a - b).norm()), j) for j, b in enumerate(unit) if j != i)[:4] for i, a in enumerate(unit)]
    mean = [sum(distance for distance, _ in own) / 4 for own in near]
    # The lower of the two middle ones is the median of an even number in torch.
    usual = [sorted(mean[j] for _, j in own)[1] for own in near]
    expected = [(own + 1e-6) / (other + 1e-6) for own, other in zip(mean, usual, strict=True)]
    torch.testing.assert_close(loneliness(features, 4), torch.tensor(expected, dtype=torch.float64))


def test_an_image_without_company_is_lonely_and_a_loose_class_is_not() -> None:
    centres = 20 * torch.eye(8, dtype=torch.float64)
    tight, loose = centres[0] + 0.1 * _normal(60, 8, seed=17), centres[1] + 2 * _normal(60, 8, seed=18)
    scores = loneliness(torch.cat([tight, loose, centres[2:5]]), 10)
    assert scores[120:].min() > scores[:120].max()
    assert scores[:60].median().item() == pytest.approx(scores[60:120].median().item(), rel=0.1)


def test_loneliness_of_images_that_are_all_alike_is_1() -> None:
    assert loneliness(torch.ones(6, 3), 2).tolist() == [1.0] * 6
    assert bool(loneliness(torch.cat([torch.zeros(3, 2), 1e30 * torch.ones(4, 2)]), 2).isfinite().all())


def test_every_image_is_known_new_or_neither() -> None:
    scores = torch.tensor([0.0, 1.0, 1.5, 2.0, 0.5])
    lonely = torch.tensor([1.0, 9.0, 1.0, 9.0, 9.0])
    known, new, neither = Triage(1.0, 0.1, lonely=3.0).split(scores, lonely)
    assert known.tolist() == [True, True, False, False, True]
    assert new.tolist() == [False, False, True, False, False]
    assert neither.tolist() == [False, False, False, True, False]
    for triage, given in [(Triage(1.0, 0.1), lonely), (Triage(1.0, 0.1, lonely=3.0), None)]:
        assert [mask.sum().item() for mask in triage.split(scores, given)] == [3, 2, 0]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_share_of_new_images_is_found(share: float) -> None:
    new = round(share * 2000)
    pile = torch.cat([_normal(2000 - new, seed=19), 6 + _normal(new, seed=20)])
    found = estimated_new_share(pile, _normal(1000, seed=21), _randomness(), rounds=300)
    below = (1 - share) * (1 / 2000 + 1 / 1000)
    assert found.share == pytest.approx(share, abs=3 * math.sqrt(below))
    assert 0 <= found.low <= found.share <= found.high <= 1


def test_the_share_is_that_of_a_loop_and_grows_with_the_scores() -> None:
    pile, known = _normal(40, seed=22), _normal(30, seed=23)
    threshold = sorted(known.tolist())[14]
    below = sum(score <= threshold for score in pile.tolist()) / 40
    found = [estimated_new_share(pile + shift, known, _randomness(), rounds=20).share for shift in (0, 0.3, 0.8, 9)]
    assert found[0] == pytest.approx(max(0.0, 1 - below / 0.5))
    assert found == sorted(found) and found[-1] == 1


def test_the_interval_covers_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(60):
        pile = torch.cat([_normal(120, seed=seed), 7 + _normal(80, seed=1000 + seed)])
        found = estimated_new_share(pile, _normal(150, seed=2000 + seed), _randomness(seed), confidence=0.8, rounds=60)
        covered += found.low <= 0.4 <= found.high
    # Three standard errors of 60 trials.
    assert covered / 60 == pytest.approx(0.8, abs=3 * math.sqrt(0.16 / 60))


def test_bad_input_is_refused() -> None:
    statistics, weight, bias = _line()
    points = torch.zeros(3, 1)
    for features in [torch.zeros(3), torch.zeros(3, 2), torch.tensor([[math.nan]])]:
        with pytest.raises(ValueError, match=r"finite and \[N, 1\]"):
            novelty_scores(features, statistics, weight, bias, "energy")
    for head in [(weight.T, bias), (weight, bias[:1]), (weight[:0], bias[:0])]:
        with pytest.raises(ValueError, match=r"weight \[C, 1\]"):
            novelty_scores(points, statistics, *head, "energy")
    with pytest.raises(ValueError, match="rule must be one of"):
        novelty_scores(points, statistics, weight, bias, "nearest")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shrinkage"):
        novelty_scores(points, statistics, weight, bias, "energy", shrinkage=1.5)
    empty = ClassStatistics(statistics.mean, torch.zeros(2, dtype=torch.int64), statistics.std)
    with pytest.raises(ValueError, match="not empty"):
        novelty_scores(points, empty, weight, bias, "energy")
    for reference in [None, torch.zeros(4, 2), torch.zeros(0, 1)]:
        with pytest.raises(ValueError, match="needs a reference"):
            novelty_scores(points, statistics, weight, bias, "combined", reference=reference)
    with pytest.raises(ValueError, match=r"neighbours must lie in 1\.\.3"):
        novelty_scores(points, statistics, weight, bias, "knn-to-samples", reference=points, neighbours=4)
    for scores, error in [(torch.zeros(9), 0.0), (torch.zeros(9), 1.0), (torch.full((9,), math.inf), 0.5)]:
        with pytest.raises(ValueError, match="error between 0 and 1"):
            calibrate_threshold(scores, error)
    with pytest.raises(ValueError, match=r"both be \[N\]"):
        Triage(0.0, 0.1).split(torch.zeros(3), torch.zeros(2))
    with pytest.raises(ValueError, match=r"\[N\] and \[n\]"):
        estimated_new_share(torch.zeros(0), torch.zeros(3), _randomness())
    with pytest.raises(ValueError, match="level and confidence"):
        estimated_new_share(torch.zeros(3), torch.zeros(3), _randomness(), level=0.0)
