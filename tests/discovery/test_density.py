import math

import pytest
import torch
from torch import Tensor

from inlay.discovery.density import density_head, matched_temperature, needed_floor, shared_part
from inlay.discovery.repair import without
from inlay.discovery.statistics import ClassStatistics, StatisticsKind, class_statistics

SIZE, CLASSES = 6, 4


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _statistics() -> ClassStatistics:
    labels = torch.arange(CLASSES).repeat_interleave(30)
    shapes = _normal(CLASSES, SIZE, SIZE, seed=0)
    features = torch.einsum("nd,nde->ne", _normal(len(labels), SIZE, seed=1), shapes[labels])
    return class_statistics((features + 3 * _normal(CLASSES, SIZE, seed=2)[labels]).float(), labels, CLASSES, "full")


def _reference(statistics: ClassStatistics, features: Tensor, shrinkage: float, floor: float) -> Tensor:
    """Log densities but for the constant that all classes share, with whole covariances."""
    covariances = [statistics.covariance(index) for index in range(len(statistics))]
    within = sum(covariances[1:], covariances[0]) / len(covariances)
    if statistics.kind == "pooled":
        assert statistics.correlation is not None
        typical = torch.stack([covariance.diagonal() for covariance in covariances]).mean(dim=0).sqrt()
        within = torch.diag(typical) @ statistics.correlation.double() @ torch.diag(typical)
    ridge = floor * within.diagonal().mean() * torch.eye(SIZE, dtype=torch.float64)
    scores = torch.empty(len(features), len(covariances), dtype=torch.float64)
    for index, covariance in enumerate(covariances):
        shrunk = (1 - shrinkage) * covariance + shrinkage * within + ridge
        for row, feature in enumerate(features.double()):
            away = feature - statistics.mean[index].double()
            scores[row, index] = -(away @ torch.linalg.inv(shrunk) @ away + torch.linalg.slogdet(shrunk)[1]) / 2
    return scores


@pytest.mark.parametrize(("shrinkage", "floor"), [(0.8, 0.1), (0.3, 0.01), (1.0, 0.5)])
def test_all_directions_give_the_log_densities(shrinkage: float, floor: float) -> None:
    statistics, features = _statistics(), 3 * _normal(9, SIZE, seed=3)
    expected = _reference(statistics, features, shrinkage, floor)
    found = density_head(statistics, shrinkage, floor, rank=100)(features.float()).double()
    # The determinant of the shared transform is the same for all classes and left out.
    torch.testing.assert_close(found - found[:, :1], expected - expected[:, :1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["full", "pooled"])
def test_features_far_from_the_origin_lose_no_digits(kind: StatisticsKind) -> None:
    labels = torch.arange(CLASSES).repeat_interleave(30)
    features = (_normal(len(labels), SIZE, seed=1) + _normal(CLASSES, SIZE, seed=2)[labels] + 1000).float()
    statistics = class_statistics(features, labels, CLASSES, kind)
    shrinkage = shared_part(statistics)
    expected = _reference(statistics, features[::20], shrinkage, 0.05)
    found = density_head(statistics, shrinkage, 0.05)(features[::20]).double()
    torch.testing.assert_close(found - found[:, :1], expected - expected[:, :1], rtol=0, atol=0.05)


def test_fewer_directions_keep_trace_and_leading_directions() -> None:
    statistics, rank = _statistics(), 2
    whole, cut = (density_head(statistics, 0.8, 0.1, rank=kept) for kept in (SIZE, rank))
    for index in range(CLASSES):
        variances = 1 / (whole.gains[index] + whole.precisions[index])
        kept = 1 / (cut.gains[index] + cut.precisions[index])
        torch.testing.assert_close(kept, variances[-rank:])
        noise = 1 / cut.precisions[index].item()
        assert kept.sum().item() + (SIZE - rank) * noise == pytest.approx(variances.sum().item(), rel=1e-4)


def test_with_nothing_of_their_own_classes_differ_by_their_distance() -> None:
    statistics = ClassStatistics(torch.tensor([[0.0, 0.0], [4.0, 0.0]]), torch.tensor([5, 5]), torch.ones(2))
    scores = density_head(statistics, shrinkage=1.0, floor=1.0)(torch.tensor([[1.0, 0.0], [2.0, 9.0]]))
    # The variance is 1 + 1 in each direction: -(1 - 9) / 2 / 2, and halfway none is nearer.
    assert (scores[0, 0] - scores[0, 1]).item() == pytest.approx(2.0)
    assert (scores[1, 0] - scores[1, 1]).item() == pytest.approx(0.0, abs=1e-5)


def test_pooled_statistics_share_everything() -> None:
    labels = torch.arange(CLASSES).repeat_interleave(30)
    features = _normal(len(labels), SIZE, seed=1) @ _normal(SIZE, SIZE, seed=0) + 3 * labels[:, None]
    statistics = class_statistics(features, labels, CLASSES, "pooled")
    assert shared_part(statistics) == 1.0
    points = 3 * _normal(9, SIZE, seed=3)
    expected = _reference(statistics, points, 1.0, 0.5)
    head = density_head(statistics, 1.0, 0.5)
    assert head.directions.shape == (CLASSES, SIZE, 1)
    found = head(points.float()).double()
    torch.testing.assert_close(found - found[:, :1], expected - expected[:, :1], rtol=1e-3, atol=1e-3)


def test_the_floor_falls_where_pooled_images_outnumber_dimensions() -> None:
    counts = torch.tensor([11, 0, 31])
    for kind_of, expected in (((), 0.5), ((torch.eye(8).half(),), 0.5 * 8 / 40)):
        statistics = ClassStatistics(torch.zeros(3, 8), counts, torch.ones(3, 8), *kind_of)
        assert needed_floor(statistics, 0.5) == pytest.approx(expected)
    few = ClassStatistics(torch.zeros(3, 8), torch.tensor([4, 1, 0]), torch.ones(3, 8), torch.eye(8).half())
    assert needed_floor(few, 0.5) == 0.5


def test_few_images_of_a_class_do_not_count_against_it() -> None:
    """Two classes that differ in how many images their means come from, seen by images of both."""
    size, few, many = 200, 5, 500
    labels = torch.tensor([0] * few + [1] * many)
    images = _normal(few + many + 2000, size, seed=7)
    images[labels.nonzero().flatten(), 0] += 4
    seen, truth = images[few + many :], torch.arange(2000) % 2
    seen[:, 0] += 4 * truth
    statistics = class_statistics(images[: few + many], labels, 2, "diagonal")
    taken = {}
    for by_counts in (False, True):
        scores = density_head(statistics, 1.0, 0.05, by_counts=by_counts)(seen.float())
        taken[by_counts] = (scores.argmax(dim=1) == 0).double().mean().item()
    assert taken[False] < 0.25 and taken[True] == pytest.approx(0.5, abs=0.1)
    within = torch.stack([statistics.covariance(index) for index in range(2)]).mean(dim=0)
    precision = torch.linalg.inv(within + 0.05 * within.diagonal().mean() * torch.eye(size, dtype=torch.float64))
    plain, counted = (density_head(statistics, 1.0, 0.05, by_counts=by).constants.double() for by in (False, True))
    for index, count in enumerate((few, many)):
        expected = sum((precision[i] @ within[i]).item() for i in range(size)) / count
        assert (plain - counted)[index].item() == pytest.approx(expected, rel=1e-3)


def test_an_empty_class_has_no_probability() -> None:
    whole, features = _statistics(), 3 * _normal(20, SIZE, seed=4).float()
    scores = density_head(without(whole, [1]))(features)
    rest = scores[:, [0, 2, 3]]
    assert (scores[:, 1] < rest.amin(dim=1)).all() and torch.isfinite(scores).all()
    assert (scores.double().softmax(dim=1)[:, 1] == 0).all()
    assert torch.equal(scores.softmax(dim=1)[:, [0, 2, 3]], rest.softmax(dim=1))


def test_a_density_head_is_saved_by_its_tensors() -> None:
    first, second = density_head(_statistics()), density_head(without(_statistics(), [0]))
    features = _normal(5, SIZE, seed=5).float()
    assert not torch.equal(first(features), second(features))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(features), second(features))


@pytest.mark.parametrize(("counts", "shared"), [([24, 24], 0.5), ([8, 8], 0.75), ([72, 0], 0.25), ([5000, 0], 0.2)])
def test_better_known_classes_share_less(counts: list[int], shared: float) -> None:
    # Six dimensions and a prior of 4: the common covariance counts for 24 samples.
    statistics = ClassStatistics(torch.zeros(2, SIZE), torch.tensor(counts), torch.ones(2, SIZE))
    assert shared_part(statistics, 4.0) == pytest.approx(shared)


def test_numbers_out_of_range_are_refused() -> None:
    for changes in ({"shrinkage": 0.0}, {"shrinkage": 1.1}, {"floor": 0.0}, {"rank": 0}):
        with pytest.raises(ValueError, match="need 0 < shrinkage"):
            density_head(_statistics(), **changes)


@pytest.mark.parametrize("confidence", [0.4, 0.7, 0.95])
def test_the_temperature_gives_the_confidence(confidence: float) -> None:
    scores = 20 * _normal(200, 3, seed=6)
    temperature = matched_temperature(scores, confidence)
    total = 0.0
    for row in scores.tolist():
        shares = [math.exp((value - max(row)) / temperature) for value in row]
        total += max(shares) / sum(shares)
    assert total / len(scores) == pytest.approx(confidence, abs=1e-4)
