"""Scores of a learner, and the matching of its clusters that they rest on."""

import itertools
from pathlib import Path

import pytest
import torch

import inlay
from inlay.data import ImageSet
from inlay.errors import InlayError
from inlay.evaluation import score
from tiny_digits import digits
from tiny_runs import BASE, FIRST, SECOND, SEEN, base_learner, fresh, reopened, two_stages


def best_names(clusters: tuple[int, ...], truth: list[str], names: list[str]) -> tuple[str, ...]:
    """The names of the clusters under which most images are right, by trying all."""
    orders = list(itertools.permutations(names))
    agreeing = [sum(order[c] == name for c, name in zip(clusters, truth, strict=True)) for order in orders]
    return orders[agreeing.index(max(agreeing))]


def test_scores_are_those_of_truth_mapped_by_hand(tmp_path: Path) -> None:
    learner, _ = reopened(two_stages(), tmp_path / "run")
    outputs = list(BASE)
    for record, names in zip(learner.stages[1:], (FIRST, SECOND), strict=True):
        truth = [name for name in names for _ in range(40)]
        outputs += best_names(record.clusters, truth, names)
    test = fresh(SEEN)
    truth_ids = [outputs.index(name) for name in SEEN for _ in range(20)]
    expected = score(learner.knowledge.logits(test), truth_ids, [0, 0, 0, 1, 1, 2, 2], matched_on="train")
    assert learner.evaluate(test, match=digits(SEEN)) == expected
    assert learner.matched_names(1) + learner.matched_names(2) == tuple(outputs[3:])


def swapped(names: list[str]) -> ImageSet:
    """The same images under each other's names."""
    images = digits(names)
    assert images.labels is not None
    return ImageSet(images.images, images.names, 1 - images.labels, images.class_names)


def test_a_matching_is_found_once_and_survives_loading(tmp_path: Path) -> None:
    learner, _ = reopened(two_stages(), tmp_path / "run")
    test = fresh(SEEN)
    first = learner.evaluate(test, match=digits([*FIRST, *SECOND]))
    names = learner.matched_names(1)
    assert learner.evaluate(test, match=swapped(FIRST)) == learner.evaluate(test) == first
    again = inlay.load(tmp_path / "run", device="cpu")
    assert again.evaluate(test, match=swapped(FIRST)) == again.evaluate(test) == first
    assert again.matched_names(1) == names and first.matched_on == "train"
    copied = inlay.load(again.save(tmp_path / "copy"), device="cpu")
    assert copied.evaluate(test) == first


def test_other_labels_at_first_give_another_matching(tmp_path: Path) -> None:
    right, _ = reopened(two_stages(), tmp_path / "right")
    wrong, _ = reopened(two_stages(), tmp_path / "wrong")
    test = fresh([*BASE, *FIRST])
    right.evaluate(test, match=digits([*FIRST, *SECOND]))
    wrong.evaluate(test, match=joined(swapped(FIRST), digits(SECOND)))
    assert wrong.matched_names(1) == right.matched_names(1)[::-1]


def joined(first: ImageSet, second: ImageSet) -> ImageSet:
    assert first.labels is not None and second.labels is not None
    return ImageSet(
        torch.cat([first.images, second.images]),
        first.names + second.names,
        torch.cat([first.labels, second.labels + len(first.class_names)]),
        first.class_names + second.class_names,
    )


def test_without_match_the_scores_say_that_the_test_images_decided(tmp_path: Path) -> None:
    learner, _ = reopened(two_stages(), tmp_path / "run")
    assert learner.evaluate(fresh(SEEN)).matched_on == "test"
    with pytest.raises(InlayError, match="Stage 1 was not matched yet; call evaluate with labelled images in match"):
        learner.matched_names(1)


def test_unseen_classes_are_left_out_with_a_note(tmp_path: Path) -> None:
    learner, news = reopened(two_stages(), tmp_path / "run")
    seen = learner.evaluate(fresh(SEEN), match=digits([*FIRST, *SECOND]))
    assert not news.notes
    assert learner.evaluate(fresh([*SEEN, "8", "9"])) == seen
    assert news.notes == ["40 test images of classes that were not seen yet are left out."]


def test_matching_needs_the_images_of_each_stage(tmp_path: Path) -> None:
    learner, _ = reopened(two_stages(), tmp_path / "run")
    with pytest.raises(InlayError, match="was among the unlabelled images of stage 2; give the same images"):
        learner.evaluate(fresh(SEEN), match=digits(FIRST))
    scores = learner.evaluate(fresh(SEEN), match=digits(SECOND))
    assert scores.matched_on == "train" and set(learner.matched_names(1)) == set(FIRST)


def test_a_matching_of_later_stages_does_not_follow_an_earlier_stage(tmp_path: Path) -> None:
    learner, _ = reopened(two_stages(), tmp_path / "run")
    learner.evaluate(fresh(SEEN), match=digits([*FIRST, *SECOND]))
    earlier = inlay.load(tmp_path / "run", stage=1, device="cpu")
    copied = inlay.load(earlier.save(tmp_path / "copy"), device="cpu")
    assert copied.matched_names(1) == learner.matched_names(1)
    with pytest.raises(InlayError, match="Stage 2 was not matched yet"):
        copied.matched_names(2)


def test_scores_before_any_discovery(tmp_path: Path) -> None:
    learner, _ = reopened(base_learner(), tmp_path / "run")
    scores = learner.evaluate(fresh(BASE))
    assert scores.matched_on is None and scores.old == scores.all and scores.new is None


def test_evaluation_needs_labels(tmp_path: Path) -> None:
    learner, _ = reopened(two_stages(), tmp_path / "run")
    with pytest.raises(InlayError, match="These images have no labels"):
        learner.evaluate(fresh(BASE).without_labels())
