import functools
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from inlay.calibration import Calibration, HiddenTrial
from inlay.data import ImageSet
from inlay.discovery.class_count import estimate_class_count
from inlay.discovery.repair import without
from inlay.discovery.second_look import second_look
from inlay.discovery.statistics import ClassStatistics
from inlay.engine.randomness import derive_seed, generator
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from inlay.piles import calibrated, count_new_classes, look_again, novelty_of, sort_pile
from inlay.pipeline import Workshop, learn_base, learn_stage
from tiny_digits import digits
from tiny_stage import quick

KNOWN, NEW = ["0", "1", "2", "4"], ["3", "6"]
ERROR = 0.1


def _calibrated(known: Knowledge, held_out: ImageSet, error: float) -> Calibration:
    assert held_out.labels is not None
    return calibrated(known, known.features(held_out), held_out.labels, error)


@functools.cache
def _known() -> tuple[Knowledge, Calibration]:
    settings = quick(changes={"base.training.epochs": 12, "base.training.learning_rate": 0.05})
    known = learn_base(digits(KNOWN, 0, 100), "resnet8", settings, 3, Workshop())
    return known, _calibrated(known, digits(KNOWN, 100, 140), ERROR)


def _referring(known: Knowledge) -> Knowledge:
    """Return the same with the features of images that it was not trained on."""
    held_out = digits(KNOWN, 100, 140)
    assert held_out.labels is not None
    referring = known.referring_to(known.features(held_out), held_out.labels)
    assert referring.reference is not None
    return referring


def test_calibration_measures_held_out_images() -> None:
    known, calibration = _known()
    held_out = digits(KNOWN, 100, 140)
    assert held_out.labels is not None
    right = (known.logits(held_out).argmax(dim=1) == held_out.labels).double().mean().item()
    assert calibration.accuracy == pytest.approx(right)
    scores = novelty_of(known, known.features(held_out))
    assert calibration.known_scores == pytest.approx(scores.tolist())


def test_a_mixed_pile_is_parted() -> None:
    known, calibration = _known()
    old, new = digits(KNOWN, 140, 177), digits(NEW, 0, 60)
    features = torch.cat([known.features(old), known.features(new)])
    pile = sort_pile(known, features, calibration, ERROR)
    assert torch.equal(pile.known.int() + pile.new.int() + pile.neither.int(), torch.ones(len(features)).int())
    is_new = torch.arange(len(features)) >= len(old)
    # Three standard errors above what is promised.
    assert (~pile.known)[~is_new].double().mean() < ERROR + 3 * (ERROR * (1 - ERROR) / len(old)) ** 0.5
    assert pile.new[is_new].double().mean() > 0.6
    assert pile.has_new
    assert pile.share.low < len(new) / len(features) + 0.05


def test_a_second_look_finds_more_and_leaves_what_is_neither() -> None:
    known, calibration = _known()
    old, new = digits(KNOWN, 140, 177), digits(NEW, 0, 60)
    features = torch.cat([known.features(old), known.features(new)])
    is_new = torch.arange(len(features)) >= len(old)
    first = sort_pile(known, features, calibration, ERROR)
    missed = first.new & (torch.arange(len(features)) % 4 == 0)
    first = replace(first, new=first.new & ~missed, known=first.known | missed)
    again = look_again(known, features, first, len(NEW))
    assert torch.equal(again.neither, first.neither) and torch.equal(again.scores, first.scores)
    assert torch.equal(again.known.int() + again.new.int() + again.neither.int(), torch.ones(len(features)).int())
    assert again.new[missed & is_new].double().mean() > 0.9
    assert again.new[~is_new].double().mean() < ERROR + 3 * (ERROR * (1 - ERROR) / len(old)) ** 0.5
    few = replace(first, new=torch.arange(len(features)) < 2, known=torch.arange(len(features)) >= 2)
    assert look_again(known, features, few, len(NEW)) is few


def test_images_are_compared_with_each_other_where_some_were_kept_out() -> None:
    plain, calibration = _known()
    known = replace(plain, settings=plain.settings.changed({"branch.gate": "frozen"}))
    known = _referring(known)
    old, new = digits(KNOWN, 140, 177), digits(NEW, 0, 60)
    features = torch.cat([known.features(old), known.features(new)])
    is_new = torch.arange(len(features)) >= len(old)
    first, pile = (sort_pile(each, features, calibration, ERROR) for each in (plain, known))
    assert pile.in_company and not first.in_company
    assert torch.equal(pile.neither, first.neither) and pile.share == first.share
    assert torch.equal(pile.known.int() + pile.new.int() + pile.neither.int(), torch.ones(len(features)).int())
    # Images of the pile and those laid in both vary.
    assert pile.new[~is_new].double().mean() < ERROR + 3 * (ERROR * (1 - ERROR) * (1 / len(old) + 1 / 160)) ** 0.5
    assert pile.new[is_new].double().mean() > 0.6
    assert bool(pile.scores.isfinite().all())
    assert look_again(known, features, pile, len(NEW)) is pile
    again = sort_pile(known, features, calibration, ERROR)
    assert torch.equal(again.scores, pile.scores) and torch.equal(again.new, pile.new)
    alone = sort_pile(known, known.features(old), calibration, ERROR)
    assert alone.in_company and not alone.has_new


def test_nothing_new_is_found_where_nothing_is() -> None:
    known, calibration = _known()
    pile = sort_pile(known, known.features(digits(KNOWN, 140, 177)), calibration, ERROR)
    assert not pile.has_new
    assert pile.share.low == 0


def test_a_comparison_of_images_decides_whether_anything_is_new() -> None:
    plain, calibration = _known()
    held_out, old = digits(KNOWN, 100, 140), digits(KNOWN, 140, 177)
    assert held_out.labels is not None
    known = replace(plain, settings=plain.settings.changed({"branch.gate": "frozen"}))
    known = known.referring_to(known.features(held_out), held_out.labels)
    # Known images that were kept out happened to be nearer to the rest than those of the pile are.
    lucky = replace(calibration, known_scores=tuple(score - 1.0 for score in calibration.known_scores))
    first, pile = (sort_pile(each, plain.features(old), lucky, ERROR) for each in (plain, known))
    assert first.has_new and first.share.low > 0
    assert pile.in_company and not pile.has_new
    # So few that the images judged one by one do not show them.
    both = torch.cat([known.features(old), known.features(digits(NEW[:1], 0, 12))])
    first, pile = (sort_pile(each, both, calibration, ERROR) for each in (plain, known))
    assert first.share.low == 0 and not first.has_new
    assert pile.in_company and pile.has_new


def test_a_network_that_is_trained_looks_again_by_images_that_were_kept_out() -> None:
    plain, calibration = _known()
    known = _referring(plain)
    assert known.reference is not None
    old, new = digits(KNOWN, 140, 177), digits(NEW, 0, 60)
    features = torch.cat([known.features(old), known.features(new)])
    pile = sort_pile(known, features, calibration, ERROR)
    assert pile.in_company
    again = look_again(known, features, pile, len(NEW))
    seen, randomness = ~pile.neither, generator(derive_seed(known.seed, "pile", 0), "second look")
    told = (known.statistics, len(NEW), ERROR, randomness, known.reference.features)
    expected = torch.zeros_like(pile.new)
    expected[seen] = second_look(features[seen], pile.new[seen], *told)
    assert torch.equal(again.new, expected) and torch.equal(again.known, seen & ~expected)
    assert torch.equal(again.neither, pile.neither)


def test_after_a_stage_replayed_features_stand_for_held_out_ones() -> None:
    plain, calibration = _known()
    known = _referring(plain)
    after = learn_stage(known, digits(NEW, 0, 60).without_labels(), 2, known.settings, Workshop())
    old = digits([*KNOWN, *NEW], 140, 170)
    pile = sort_pile(after, after.features(old), calibration, ERROR)
    # What is expected of images kept out is too unlike the images of a pile to be compared with them.
    assert after.reference is not None and not pile.in_company
    assert torch.equal(pile.new, sort_pile(replace(after, reference=None), after.features(old), calibration, ERROR).new)
    assert (~pile.known).double().mean() < 0.5
    again = sort_pile(after, after.features(old), calibration, ERROR)
    assert torch.equal(pile.scores, again.scores)


def test_the_interval_is_as_wide_as_calibration_says() -> None:
    known, calibration = _known()
    features = known.features(digits(NEW, 0, 60))
    count = count_new_classes(known, features, calibration, 0)
    assert 1 <= count.low <= count.estimate <= count.high
    assert count == count_new_classes(known, features, calibration, 0)


def test_too_small_an_error_is_refused() -> None:
    known, _ = _known()
    with pytest.raises(InlayError, match="cannot be promised from 8 known images"):
        _calibrated(known, digits(KNOWN, 100, 102), 0.01)


def test_heads_side_by_side_cannot_sort() -> None:
    settings = quick("autonovel")
    base = learn_base(digits(KNOWN), "resnet8", settings, 0, Workshop())
    stage = learn_stage(base, digits(NEW).without_labels(), 2, settings, Workshop())
    with pytest.raises(InlayError, match="no joint head"):
        novelty_of(stage, stage.features(digits(NEW)))


def test_looser_hidden_classes_make_for_fewer_new_ones() -> None:
    known, calibration = _known()
    features = known.features(digits(["3", "6", "8", "9"], 0, 100))
    trial = HiddenTrial(tuple(map(str, range(100))), 100, 0.9, 0.05, 0.8, 0.01, 0.02, spread=2.0)
    told = replace(calibration, trials=(trial,))
    plain = count_new_classes(known, features, calibration, 0)
    assert count_new_classes(known, features, told, 0).estimate < plain.estimate
    assert plain.curve[0].k == 1


def test_counts_that_are_too_low_throughout_are_multiplied() -> None:
    known, calibration = _known()
    features = known.features(digits(["3", "6", "8", "9"], 0, 100))
    trial = HiddenTrial(tuple(map(str, range(100))), 80, 0.9, 0.05, 0.8, 0.01, 0.02, 1.0, 80, 1.0)
    plain = count_new_classes(known, features, calibration, 0)
    told = count_new_classes(known, features, replace(calibration, trials=(trial,)), 0)
    # Nearly by a quarter, as a hundred classes were hidden.
    assert told.estimate == round(plain.estimate * (100 / 81) ** (100 / 104)) > plain.estimate
    # Trials of networks that stay as they are, and of earlier runs, say nothing of this.
    other = replace(calibration, trials=(replace(trial, sorted_estimate=None, sorted_spread=None),))
    assert count_new_classes(known, features, other, 0).estimate == plain.estimate


def test_with_one_known_class_stability_counts() -> None:
    known, calibration = _known()
    lone = replace(known, statistics=without(known.statistics, [1, 2, 3]))
    features = known.features(digits(NEW, 0, 60))
    expected = estimate_class_count(features, generator(5, "class count"))
    assert count_new_classes(lone, features, calibration, 5) == expected.widened(calibration.widening)


def test_images_of_another_source_are_neither() -> None:
    known, calibration = _known()
    old, new = digits(KNOWN, 140, 177), digits(NEW, 0, 60)
    inverted = 255 - digits(NEW, 60, 75).images
    foreign = ImageSet(inverted, tuple(f"inverted#{index}" for index in range(len(inverted))))
    features = torch.cat([known.features(images) for images in (old, new, foreign)])
    pile = sort_pile(known, features, calibration, ERROR)
    is_new = torch.arange(len(features)) - len(old)
    is_new = (is_new >= 0) & (is_new < len(new))
    assert pile.neither[-len(inverted) :].double().mean() > 0.5
    assert pile.neither[is_new].double().mean() < 0.1


class _Counting(ClassStatistics):
    """Remembers how many features were drawn at a time."""

    drawn: ClassVar[list[int]] = []

    def sample(self, per_class: int, generator: torch.Generator, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        features, labels = super().sample(per_class, generator, scale)
        self.drawn.append(len(features))
        return features, labels


@pytest.mark.parametrize(("classes", "expected"), [(50, 10_000), (250, 20_000)])
def test_features_that_stand_for_known_images_do_not_grow_with_the_square_of_the_classes(
    classes: int, expected: int
) -> None:
    plain, calibration = _known()
    size = plain.statistics.mean.shape[1]
    means = torch.randn(classes, size, generator=generator(0, "means"))
    statistics = _Counting(means, torch.full((classes,), 9), torch.ones(classes, size))
    head = nn.Linear(size, classes).requires_grad_(False)
    known = replace(plain, statistics=statistics, head=head, record=replace(plain.record, index=1))
    _Counting.drawn.clear()
    assert len(sort_pile(known, means, calibration, ERROR).scores) == classes
    assert set(_Counting.drawn) == {expected}
