"""Groups that known classes do not explain, on points whose truth is known, and against a loop."""

import math

import pytest
import torch
from torch import Tensor

from inlay.discovery import groups
from inlay.discovery.groups import newness, stands_out, threshold_in_company
from inlay.discovery.statistics import ClassStatistics, class_statistics
from inlay.discovery.triage import calibrate_threshold
from inlay.discovery.whitening import known_metric

SIZE = 6
KNOWN = 4


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _around(centres: Tensor, each: int, seed: int) -> Tensor:
    return (centres[:, None] + 0.5 * _normal(len(centres), each, SIZE, seed=seed)).flatten(0, 1)


CENTRES = 3 * torch.eye(SIZE, dtype=torch.float64)


def _known() -> ClassStatistics:
    images = _around(CENTRES[:KNOWN], 100, seed=0)
    return class_statistics(images, torch.arange(KNOWN).repeat_interleave(100), KNOWN)


def _asked(pile: Tensor, reference: Tensor, looks_new: Tensor | None = None, share: float = 0.5) -> groups.Newness:
    looks = torch.ones(len(pile), dtype=torch.bool) if looks_new is None else looks_new
    return newness(
        pile, reference, _known(), looks, looks.new_ones(len(reference)), share, torch.Generator().manual_seed(0)
    )


def test_images_of_new_classes_are_new_and_others_are_not() -> None:
    reference = _around(CENTRES[:KNOWN], 40, seed=1)
    old, new = _around(CENTRES[:KNOWN], 60, seed=2), _around(CENTRES[KNOWN:], 80, seed=3)
    found = _asked(torch.cat([old, new]), reference)
    assert found.pile.shape == (len(old) + len(new),) and found.reference.shape == (len(reference),)
    for values in (found.pile, found.reference):
        assert bool((values >= 0).all()) and bool((values <= 1).all())
    assert found.pile[len(old) :].mean() > 0.9
    assert found.pile[: len(old)].mean() < 0.1
    assert found.reference.mean() < 0.1


def test_a_corner_of_known_classes_is_not_new_for_lying_apart() -> None:
    """Known images of a kind that the statistics do not know of: the reference has them too, so they are not new."""
    odd, new = -4 * torch.ones(1, SIZE, dtype=torch.float64), CENTRES[KNOWN:]
    reference = torch.cat([_around(CENTRES[:KNOWN], 40, seed=1), _around(odd, 20, seed=4)])
    old = torch.cat([_around(CENTRES[:KNOWN], 60, seed=2), _around(odd, 30, seed=5)])
    found = _asked(torch.cat([old, _around(new, 80, seed=3)]), reference)
    corner = found.pile[KNOWN * 60 : len(old)]
    assert corner.mean() < 0.2
    assert found.pile[len(old) :].mean() > 0.9
    unaware = _asked(torch.cat([old, _around(new, 80, seed=3)]), _around(CENTRES[:KNOWN], 40, seed=1))
    assert unaware.pile[KNOWN * 60 : len(old)].mean() > 0.8


def test_known_images_in_the_pile_are_treated_as_those_laid_in() -> None:
    """The promise: as many known images of the pile exceed a threshold as of the reference."""
    wide = 2 * CENTRES[:KNOWN].mean(dim=0) + 2.5 * _normal(1200, SIZE, seed=6)
    order = torch.randperm(len(wide), generator=torch.Generator().manual_seed(0))
    reference, old = wide[order[:400]], wide[order[400:]]
    pile = torch.cat([old, _around(CENTRES[KNOWN:] - 3, 200, seed=7)])
    found = _asked(pile, reference)
    threshold = found.reference.sort().values[math.ceil(401 * 0.9) - 1]
    exceeding = (found.pile[: len(old)] > threshold).double().mean().item()
    assert exceeding < 0.1 + 3 * (0.1 * 0.9 * (1 / 400 + 1 / 800)) ** 0.5


def test_it_repeats_itself_and_is_indifferent_to_where_features_lie() -> None:
    pile = torch.cat([_around(CENTRES[:KNOWN], 60, seed=2), _around(CENTRES[KNOWN:], 80, seed=3)])
    reference, far = _around(CENTRES[:KNOWN], 40, seed=1), 50.0
    known = _known()
    moved = ClassStatistics(known.mean + far, known.counts, known.std, known.correlation)
    looks = torch.ones(len(pile), dtype=torch.bool)
    first, again = _asked(pile, reference), _asked(pile, reference)
    assert torch.equal(first.pile, again.pile) and torch.equal(first.reference, again.reference)
    there = newness(
        pile + far, reference + far, moved, looks, looks.new_ones(len(reference)), 0.5, torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(there.pile, first.pile, atol=1e-3, rtol=0)


def test_what_is_found_is_the_mean_of_several_looks() -> None:
    """Groups of overlapping classes depend on where they begin; the mean depends on it less."""
    pile = torch.cat([_around(CENTRES[:KNOWN] / 3, 60, seed=2), _around(CENTRES[KNOWN:] / 3, 80, seed=3)])
    reference, known = _around(CENTRES[:KNOWN] / 3, 40, seed=1), _known()
    randomness = torch.Generator().manual_seed(0)
    groups._drawn(len(pile), len(pile), randomness)
    place = groups._Place.of(known, pile)
    points, laid_in = place(pile), place(reference)
    begun = torch.cat([points, laid_in])
    looks = [groups._look(points, points, laid_in, place(known.mean), begun, 0.5, randomness) for _ in range(5)]
    found = _asked(pile, reference)
    for number, values in enumerate((found.pile, found.reference)):
        single = [look[number] for look in looks]
        assert max(float((one - single[0]).abs().max()) for one in single) > 0.05
        torch.testing.assert_close(values, sum(single, torch.zeros(())) / len(single))


def test_of_many_features_the_directions_are_kept_in_which_images_vary() -> None:
    size, varied = 300, 10
    axes = torch.linalg.qr(_normal(size, varied, seed=11)).Q
    labels = torch.arange(KNOWN).repeat_interleave(100)
    known = class_statistics(_normal(len(labels), size, seed=12), labels, KNOWN, "pooled")
    images = 7 + 3 * _normal(50, varied, seed=13) @ axes.T
    place = groups._Place.of(known, images)
    places = place(images)
    assert places.shape == (50, groups._DIRECTIONS)
    metric = known_metric(known)
    for first, second in ((0, 1), (2, 30), (17, 49)):
        apart = (images[first] - images[second]) @ metric
        torch.testing.assert_close((places[first] - places[second]).norm(), apart.norm())


def test_a_round_equals_the_loop_reference() -> None:
    points, known, seeds = _normal(7, 2, seed=8), _normal(3, 2, seed=9), _normal(2, 2, seed=10)
    groups_before, weights = seeds.tolist(), [0.25, 0.25, 0.5 / 3, 0.5 / 3, 0.5 / 3]
    for _ in range(groups._ROUNDS):
        shares = []
        for point in points.tolist():
            heights = [
                weight * math.exp(-sum((a - b) ** 2 for a, b in zip(point, centre, strict=True)) / 2)
                for weight, centre in zip(weights, [*groups_before, *known.tolist()], strict=True)
            ]
            shares.append([height / sum(heights) for height in heights])
        mass = [sum(row[g] for row in shares) for g in range(5)]
        groups_before = [
            [sum(row[g] * points[n, d].item() for n, row in enumerate(shares)) / mass[g] for d in range(2)]
            for g in range(2)
        ]
        weights = [max(value / len(shares), 1e-6) for value in mass]
    found = groups._fitted(points, known, seeds)
    torch.testing.assert_close(found.groups, torch.tensor(groups_before, dtype=torch.float64))
    expected = torch.tensor(weights, dtype=torch.float64)
    torch.testing.assert_close(torch.cat([found.group_weights, found.known_weights]).exp(), expected)


def test_purity_by_hand() -> None:
    found, known = torch.tensor([9.0, 4.0, 1.0]), torch.tensor([2.0, 5.0, 9.0])
    assert groups._purity(found, known).tolist() == pytest.approx([0.8, 0.0, 0.0])
    # Of 10 images 6 are in a group without known ones and 2 in one that half of the known ones are in.
    agreed = groups._known_images(torch.tensor([6.0, 2.0]), torch.tensor([0.0, 0.5]), 9.0, 10)
    assert agreed == pytest.approx(10 - 6 - 2 * max(0.0, 1 - agreed * 0.5 / 3), rel=1e-6)


def test_the_metric_makes_known_classes_round() -> None:
    known = _known()
    metric = known_metric(known)
    covariance = metric @ sum((known.covariance(index) for index in range(KNOWN)), torch.zeros(1)) / KNOWN @ metric
    torch.testing.assert_close(covariance, torch.eye(SIZE, dtype=torch.float64), atol=0.05, rtol=0)
    torch.testing.assert_close(metric, metric.T)


def test_what_cannot_be_compared_is_refused() -> None:
    pile, none = torch.ones(3, SIZE), torch.zeros(3, dtype=torch.bool)
    for broken, reason in (
        ((pile[:, :2], pile, ~none), r"must be \[N, 6\]"),
        ((pile, pile[:, :2], ~none), r"must be \[N, 6\]"),
        ((pile, pile[:2], ~none), "of each image"),
        ((pile, pile, none), "an image that looks new"),
    ):
        with pytest.raises(ValueError, match=reason):
            newness(broken[0], broken[1], _known(), broken[2], none, 0.5, torch.Generator())


@pytest.mark.parametrize("count", range(19, 100))
def test_known_images_exceed_the_threshold_as_often_as_promised_within_half_an_image(count: int) -> None:
    scores = _normal(count, seed=count)
    threshold = threshold_in_company(scores, 0.05)
    # One more image of the same kind is equally likely to take any place in their order.
    above = sum(float(score) >= threshold for score in scores) / (count + 1)
    assert above <= 0.05 + 0.5 / (count + 1) + 1e-9
    if count >= 39:
        assert threshold == calibrate_threshold(scores, 0.05)


def test_one_odd_image_among_thirty_does_not_put_all_others_below_the_threshold() -> None:
    scores = torch.cat([torch.zeros(29), torch.ones(1)])
    assert threshold_in_company(scores, 0.05) == 0
    assert calibrate_threshold(scores, 0.05) == 1


@pytest.mark.parametrize(("above", "enough"), [(7, False), (8, True)])
def test_what_stands_out_by_hand(above: int, enough: bool) -> None:
    # Beside 5 of 100, 7 of 50 are .09 more, and the limit is 1.96 √(.08 · .92 · .03) = .092; 8 are .11, and it is .096.
    pile = torch.cat([torch.ones(above), torch.zeros(50 - above)])
    reference = torch.cat([torch.ones(5), torch.zeros(95)])
    assert stands_out(pile, reference, 0.5, 1.96) is enough
    assert not stands_out(pile, pile, 0.5, 1.96) and not stands_out(pile, reference, 1.0, 1.96)
    assert stands_out(pile, reference, 0.5, 1.0) and not stands_out(pile, reference, 0.5, 3.0)


def test_chance_stands_out_in_one_of_forty_piles() -> None:
    piles, images, known = 2000, 300, 200
    drawn = _normal(piles, images + known, seed=5)
    found = [stands_out(row[:images], row[images:], 1.5, 1.96) for row in drawn]
    # Three standard errors about a fortieth.
    assert abs(sum(found) / piles - 0.025) < 3 * (0.025 * 0.975 / piles) ** 0.5
