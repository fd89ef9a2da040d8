import pytest
import torch
from torch import Tensor

from inlay.discovery.second_look import second_look
from inlay.discovery.statistics import StatisticsKind, class_statistics

SIZE, EACH = 6, 300
# Two known classes, and two new ones of which the first lies near a known one.
CENTRES = torch.tensor([[6.0, 0, 0, 0, 0, 0], [0, 6, 0, 0, 0, 0], [0, 6, 3.2, 0, 0, 0], [0, 0, 0, 0, 0, 7]])


def _random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _drawn(classes: list[int], seed: int, each: int = EACH) -> Tensor:
    noise = torch.randn(len(classes), each, SIZE, generator=_random(seed))
    return (CENTRES[classes][:, None] + noise).flatten(0, 1)


def _first_look(features: Tensor, threshold: float) -> Tensor:
    return torch.cdist(features, CENTRES[:2]).amin(dim=1) > threshold


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_new_images_near_a_known_class_are_found(kind: StatisticsKind) -> None:
    known = class_statistics(_drawn([0, 1], 0), torch.arange(2).repeat_interleave(EACH), 2, kind)
    pile = _drawn([0, 1, 2, 3], 1)
    is_new = torch.arange(len(pile)) >= 2 * EACH
    first = _first_look(pile, 3.8)
    found, taken = (first[part].double().mean() for part in (is_new, ~is_new))
    again = second_look(pile, first, known, 2, 0.05, _random(2))
    assert again.dtype == torch.bool and found < 0.85 and taken < 0.05
    assert again[is_new].double().mean() > found + 0.1
    assert again[~is_new].double().mean() < 0.06


def test_at_most_the_allowed_share_of_known_images_is_taken() -> None:
    known = class_statistics(_drawn([0, 1], 0), torch.arange(2).repeat_interleave(EACH), 2, "full")
    near = CENTRES[1] + torch.randn(EACH, SIZE, generator=_random(3)) + torch.tensor([0, 0, 1.2, 0, 0, 0])
    pile = torch.cat([_drawn([0, 1], 1, each=1000), near])
    first = torch.arange(len(pile)) >= 2000
    # Classes that overlap so much are told apart worse than the error allows, so that only a margin keeps it.
    for error in (0.05, 0.1):
        again = second_look(pile, first, known, 1, error, _random(2))
        assert again[:2000].double().mean() < 1.5 * error
    assert again[2000:].double().mean() > 0.2


def test_images_that_were_kept_out_say_how_far_known_ones_lie_out() -> None:
    known = class_statistics(_drawn([0, 1], 0), torch.arange(2).repeat_interleave(EACH), 2, "full")
    # Real images spread more than those that a class was described by.
    wide = (CENTRES[[0, 1]][:, None] + 1.6 * torch.randn(2, 1000, SIZE, generator=_random(4))).flatten(0, 1)
    pile = torch.cat([wide[::2], _drawn([2], 1)])
    first = torch.arange(len(pile)) >= 1000
    drawn, held_out = (second_look(pile, first, known, 1, 0.05, _random(2), kept) for kept in (None, wide[1::2]))
    assert drawn[:1000].double().mean() > 0.08
    assert held_out[:1000].double().mean() < 0.07
    assert held_out[1000:].double().mean() > 0.3


def test_images_that_only_looked_new_are_put_back() -> None:
    known = class_statistics(_drawn([0, 1], 0), torch.arange(2).repeat_interleave(EACH), 2, "full")
    pile = _drawn([0, 1, 3], 1)
    first = torch.arange(len(pile)) >= 2 * EACH
    first[:10] = True
    again = second_look(pile, first, known, 1, 0.05, _random(2))
    assert int(again[:10].sum()) <= 1 and again[2 * EACH :].all()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_to_make_classes_stay_as_they_are(count: int) -> None:
    known = class_statistics(_drawn([0, 1], 0), torch.arange(2).repeat_interleave(EACH), 2, "full")
    pile = _drawn([0, 3], 1, each=5)
    first = torch.arange(10) >= 10 - count
    assert torch.equal(second_look(pile, first, known, 2, 0.05, _random(2)), first)


def test_the_same_draws_say_the_same() -> None:
    known = class_statistics(_drawn([0, 1], 0), torch.arange(2).repeat_interleave(EACH), 2, "full")
    pile = _drawn([0, 1, 2], 1)
    first = _first_look(pile, 3.8)
    looks = [second_look(pile, first, known, 1, 0.05, _random(seed)) for seed in (2, 2)]
    assert torch.equal(*looks)
