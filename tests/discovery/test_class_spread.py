import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.discovery import class_spread as module
from inlay.discovery.class_count import CountSettings
from inlay.discovery.class_spread import count_by_spread, relative_spread
from inlay.discovery.statistics import ClassStatistics, class_statistics

DIMENSIONS = 24


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _classes(count: int, spread: float, seed: int, per_class: int = 60) -> tuple[Tensor, Tensor]:
    generator = _seeded(seed)
    centres = F.normalize(torch.randn(count, DIMENSIONS, generator=generator))
    labels = torch.arange(count).repeat_interleave(per_class)
    noise = torch.randn(len(labels), DIMENSIONS, generator=generator)
    return 3 * (centres[labels] + spread * noise), labels


def _known(classes: int = 8) -> ClassStatistics:
    return class_statistics(*_classes(classes, 0.05, 1), classes)


def _correction(classes: int = 6) -> float:
    """What hiding other classes would teach."""
    return relative_spread(_classes(classes, 0.1, 2)[0], _known(), classes, _seeded())


@pytest.mark.parametrize("classes", [2, 4, 7])
def test_classes_as_loose_as_hidden_ones_are_counted(classes: int) -> None:
    count = count_by_spread(_classes(classes, 0.1, 3)[0], _known(), _seeded(), _correction())
    assert abs(count.estimate - classes) <= 0.2 * classes
    assert count.low <= classes <= count.high <= 2 * count.low
    assert not count.loose


def test_classes_of_unequal_sizes_are_counted() -> None:
    features, labels = _classes(5, 0.1, 3, per_class=100)
    sizes = torch.tensor([100, 56, 32, 18, 10])
    kept = torch.arange(100).repeat(5) < sizes[labels]
    assert abs(count_by_spread(features[kept], _known(), _seeded(), _correction()).estimate - 5) <= 1


def test_one_class_is_one() -> None:
    count = count_by_spread(_classes(1, 0.05, 4, 200)[0], _known(), _seeded(), _correction())
    assert (count.estimate, count.low) == (1, 1)


def test_the_looser_classes_may_be_the_fewer_are_counted() -> None:
    features = _classes(9, 0.2, 5)[0]
    estimates = [count_by_spread(features, _known(), _seeded(), factor).estimate for factor in (1.0, 9.0)]
    assert estimates == sorted(estimates, reverse=True) and estimates[0] > estimates[-1]


def test_the_score_is_highest_at_the_estimate() -> None:
    count = count_by_spread(_classes(5, 0.1, 6)[0], _known(), _seeded(), _correction())
    best = max(count.curve, key=lambda point: point.score)
    assert abs(best.k - count.estimate) <= 1
    assert [point.k for point in count.curve][:3] == [1, 2, 3]


def test_relative_spread_is_the_formula() -> None:
    known, features = _known(4), _classes(3, 0.1, 7)[0]
    settings = CountSettings(dimensions=DIMENSIONS)
    found = relative_spread(features, known, 1, _seeded(9), settings)
    # With every dimension kept no axis matters, and one centre is the mean.
    generator = _seeded(9)
    torch.randperm(len(features), generator=generator)
    drawn = [row for row in F.normalize(known.sample(60, generator)[0].double())]
    groups = [drawn[60 * index : 60 * index + 60] for index in range(4)]
    centres = [sum(group, torch.zeros(DIMENSIONS).double()) / 60 for group in groups]
    within = sum(
        float((row - centre).square().sum()) for group, centre in zip(groups, centres, strict=True) for row in group
    )
    middle = sum(centres, torch.zeros(DIMENSIONS).double()) / 4
    between = sum(float((centre - middle).square().sum()) for centre in centres) / 3
    looseness, distance = within / 240, between + within / 240
    pile = F.normalize(features.double())
    measured = sum(float((row - pile.mean(dim=0)).square().sum()) for row in pile) / len(pile)
    expected = (3 / 4) ** 2 * (0.19 + looseness / distance) * distance
    assert found == pytest.approx(measured / expected, rel=1e-4)


def test_the_likeliest_count_is_where_the_excess_ends() -> None:
    assert module._likeliest([1, 2, 4], [9.0, 6.0, -6.0]) == pytest.approx(8**0.5, rel=0.01)
    assert module._likeliest([1, 2], [-0.1, -0.2]) == 1
    assert module._likeliest([1, 2, 3], [3.0, 2.0, 1.0]) == pytest.approx(3)


def test_where_more_clusters_change_nothing_the_fewest_are_likeliest() -> None:
    assert module._likeliest([1, 2, 4, 20], [9.0, 6.0, 0.01, -0.01]) == pytest.approx(4, rel=0.02)


def test_generator_decides_everything() -> None:
    features = _classes(5, 0.3, 8)[0]
    torch.manual_seed(1)
    first = count_by_spread(features, _known(), _seeded(5))
    torch.manual_seed(2)
    assert count_by_spread(features, _known(), _seeded(5)) == first


def test_length_of_features_does_not_matter() -> None:
    features = _classes(4, 0.1, 3)[0]
    lengths = torch.rand(len(features), 1, generator=_seeded(3)) * 100 + 1
    first = count_by_spread(features, _known(), _seeded(), _correction())
    assert count_by_spread(features * lengths, _known(), _seeded(), _correction()).estimate == first.estimate


def test_equal_images_are_one_class() -> None:
    assert count_by_spread(torch.ones(50, DIMENSIONS), _known(), _seeded()).estimate == 1


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="must be finite"):
        count_by_spread(torch.full((9, DIMENSIONS), torch.nan), _known(), _seeded())
    with pytest.raises(ValueError, match="two known classes or more; got 1"):
        count_by_spread(torch.ones(9, DIMENSIONS), class_statistics(*_classes(1, 0.1, 0), 1), _seeded())
