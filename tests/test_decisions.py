import functools
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from inlay import decisions
from inlay.data import ImageSet
from inlay.decisions import Decision, Merge, Reject, Rename, Split, Undo, apply, replay
from inlay.discovery.kmeans import kmeans
from inlay.discovery.statistics import ClassStatistics
from inlay.errors import InlayError
from inlay.heads import ConcatenatedHead
from inlay.knowledge import Knowledge
from inlay.registry import ClassRegistry
from tiny_digits import QUICK, digits
from tiny_runs import BASE, quick_learner

NEW = ["3", "4", "6"]
LABELS = tuple(index % 3 % 2 for index in range(12))


def _unlabelled() -> ImageSet:
    return digits(NEW).without_labels()


@functools.cache
def found(decision: str = "densities", metric: str = "known") -> Knowledge:
    """Three labelled classes, 0 to 2, and three discovered ones, 3 to 5, learned well enough to tell apart."""
    settings = QUICK | {"base.training.epochs": 6, "training.epochs": 4, "classifier.refit_per_class": 60}
    # The rate of the preset is low for so few steps.
    settings |= {"training.learning_rate": 0.1, "classifier.decision": decision, "assignment.metric": metric}
    learner = quick_learner(settings=settings)
    learner.fit(digits(BASE))
    learner.discover(_unlabelled(), classes=3)
    return learner.knowledge


def features_of_class(id: int) -> Tensor:
    """Features of the images of a discovered class, in the order of the stage."""
    knowledge = found()
    clusters = torch.tensor(knowledge.record.clusters)
    return knowledge.features(_unlabelled())[clusters == id - 3]


def halves(id: int) -> Split:
    """A split of a discovered class by k-means."""
    labels = kmeans(features_of_class(id), 2, torch.Generator().manual_seed(0)).labels
    return Split(id, tuple(labels.tolist()))


def predicted(knowledge: Knowledge) -> Tensor:
    return knowledge.logits(digits([*BASE, *NEW], 0, 60)).argmax(dim=1)


def same(first: Knowledge, second: Knowledge) -> bool:
    """Whether weights, statistics and classes agree bit for bit."""
    (one, facts), (other, other_facts) = first.to_files(), second.to_files()
    weights = one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    return weights and facts["classes"] == other_facts["classes"]


def accuracy(knowledge: Knowledge, classes: set[int]) -> float:
    """Share of the images of some discovered classes that are predicted to be of one of them, or of what it became."""
    wanted = {knowledge.registry.resolve(id) for id in classes}
    said = knowledge.logits(_unlabelled()).argmax(dim=1).tolist()
    members = [id for id, cluster in zip(said, knowledge.record.clusters, strict=True) if cluster + 3 in classes]
    return sum(id in wanted for id in members) / len(members)


def test_a_name_touches_no_weight() -> None:
    before = found()
    after = apply(before, Rename(3, "three", when="noon"))
    assert after.registry.names[3] == "three" and before.registry.names[3] == "new-1.1"
    assert after.registry.history[0].when == "noon"
    assert after.head is before.head and after.statistics is before.statistics and after.network is before.network


@pytest.mark.parametrize(("decision", "metric"), [("linear", "plain"), ("densities", "known")])
def test_after_a_merge_the_target_takes_the_predictions_over(decision: str, metric: str) -> None:
    before = found(decision, metric)
    after = apply(before, Merge((5,), into=3))
    assert [after.registry.resolve(id) for id in range(6)] == [0, 1, 2, 3, 4, 3]
    was, now = predicted(before), predicted(after)
    assert 5 in was and 5 not in now
    assert (now[(was == 3) | (was == 5)] == 3).double().mean() > 0.9
    assert min(accuracy(after, {3, 5}), accuracy(before, {3, 5})) > 0.9
    # What the head cannot tell apart any more it cannot mistake; one Gaussian in place of two may be too wide for that.
    assert decision == "densities" or accuracy(after, {3, 5}) >= accuracy(before, {3, 5})
    sizes = torch.bincount(torch.tensor(before.record.clusters))
    assert after.statistics.counts.tolist() == [40, 40, 40, int(sizes[0] + sizes[2]), int(sizes[1]), 0]
    assert after.network is before.network and isinstance(after.head, nn.Linear)


def test_however_many_classes_there_are_they_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, draws, registry = found("linear"), torch.Generator().manual_seed(0), ClassRegistry()
    registry.add([f"kind {index}" for index in range(40)], stage=0, kind="labelled")
    registry.add(1, stage=1, kind="discovered")
    size = plain.statistics.mean.shape[1]
    means = 0.8 * torch.randn(41, size, generator=draws)
    statistics = ClassStatistics(means, torch.full((41,), 9), torch.ones(41, size), torch.eye(size).half())
    known = replace(plain, registry=registry, statistics=statistics, head=nn.Linear(size, 41))
    # As if there were so many that a person would wait for one feature of each.
    monkeypatch.setattr("inlay.decisions._MULTIPLICATIONS", 0)
    after = apply(known, Reject(40))
    labels = torch.arange(40).repeat_interleave(50)
    seen = means[labels] + torch.randn(len(labels), size, generator=draws)
    nearest = (torch.cdist(seen, means[:40]).argmin(dim=1) == labels).double().mean()
    assert (after.head(seen).argmax(dim=1) == labels).double().mean() > nearest - 0.05


def test_a_discovered_class_can_turn_out_to_be_a_labelled_one() -> None:
    after = apply(found(), Merge((4,), into=0))
    assert 4 not in predicted(after) and after.registry.resolve(4) == 0


def test_a_rejected_class_is_never_predicted_and_the_others_stay() -> None:
    before = found()
    after = apply(before, Reject(4))
    was, now = predicted(before), predicted(after)
    assert 4 in was and 4 not in now
    assert (now[was != 4] == was[was != 4]).double().mean() > 0.9
    shares = after.logits(digits(NEW)).softmax(dim=1)
    assert shares[:, 4].max() == 0 and torch.isfinite(shares).all()


def test_a_split_makes_two_classes_of_one() -> None:
    before, decision = found(), halves(3)
    after = apply(before, decision, features_of_class)
    assert [entry.id for entry in after.registry.active()] == [0, 1, 2, 4, 5, 6, 7]
    assert [entry.size for entry in after.registry][6:] == [decision.labels.count(0), decision.labels.count(1)]
    assert after.head.out_features == len(after.statistics) == 8
    said = after.head(features_of_class(3)).argmax(dim=1)
    assert 3 not in predicted(after) and {6, 7} <= set(said.tolist())
    right = said == torch.tensor(decision.labels) + 6
    assert right.double().mean() > 0.8


def _standing(ds: Sequence[Decision]) -> list[Decision]:
    kept: list[Decision] = []
    for each in ds:
        if isinstance(each, Undo):
            kept.pop()
        else:
            kept.append(each)
    return kept


def test_a_list_equals_one_decision_after_another() -> None:
    steps: list[Decision] = [Rename(3, "three"), Merge((5,), into=3), Reject(4), Rename(3, "odd")]
    one_by_one = functools.reduce(apply, steps, found())
    assert same(replay(found(), steps), one_by_one)


def test_a_split_after_a_merge_has_the_images_of_both() -> None:
    both = torch.cat([features_of_class(3), features_of_class(5)])
    split = Split(3, tuple(kmeans(both, 2, torch.Generator().manual_seed(0)).labels.tolist()))
    merge = Merge((5,), into=3)
    together = replay(found(), [merge, split], features_of_class)
    after_merge = apply(found(), merge)
    assert same(together, apply(after_merge, split, lambda id: both))


def test_a_part_can_be_split_again() -> None:
    first = halves(3)
    labels = torch.tensor(first.labels)
    part = features_of_class(3)[labels == 1]
    second = Split(7, tuple(index % 2 for index in range(len(part))), names=("left", "right"))
    together = replay(found(), [first, second], features_of_class)
    assert same(together, apply(apply(found(), first, features_of_class), second, lambda id: part))
    assert [entry.name for entry in together.registry][-2:] == ["left", "right"]
    torch.testing.assert_close(together.statistics.mean[8], part[::2].mean(dim=0))


@pytest.mark.parametrize(
    "steps",
    [
        [Merge((5,), into=3), Undo()],
        [Rename(3, "three"), Merge((5,), into=3), Undo()],
        [Merge((5,), into=3), Reject(4), Undo(), Rename(4, "four"), Undo(), Undo(), Reject(5)],
        [Rename(3, "new-1.1"), Reject(4), Undo()],
    ],
)
def test_what_is_undone_leaves_no_trace_in_the_weights(steps: list[Decision]) -> None:
    undone, expected = replay(found(), steps), replay(found(), _standing(steps))
    assert list(undone.registry) == list(expected.registry)
    first, second = undone.to_files()[0], expected.to_files()[0]
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_undone_split_needs_no_images_and_its_ids_stay_closed() -> None:
    before = found()
    after = replay(before, [Split(3, LABELS), Undo()])
    assert isinstance(before.head, nn.Linear) and isinstance(after.head, nn.Linear)
    assert torch.equal(after.head.weight[:6], before.head.weight) and after.head.out_features == 8
    assert torch.equal(predicted(after), predicted(before))
    assert after.statistics.counts.tolist() == [*before.statistics.counts.tolist(), 0, 0]
    again = replay(before, [Split(3, LABELS), Undo(), halves(4)], features_of_class)
    assert [entry.id for entry in again.registry.active()] == [0, 1, 2, 3, 5, 8, 9]
    alone = apply(before, halves(4), features_of_class)
    assert torch.equal(again.statistics.mean[8:], alone.statistics.mean[6:])


def test_decided_knowledge_survives_files() -> None:
    after = replay(found(), [halves(3), Merge((5,), into=4), Rename(4, "even")], features_of_class)
    tensors, facts = after.to_files()
    again = Knowledge.from_files(tensors, json.loads(json.dumps(facts)), torch.device("cpu"))
    assert torch.equal(predicted(again), predicted(after)) and again.registry == after.registry


def test_heads_side_by_side_become_one_joint_head() -> None:
    learner = quick_learner(preset="autonovel")
    learner.fit(digits(BASE))
    learner.discover(digits(["3", "4"]).without_labels(), classes=2)
    before = learner.knowledge
    assert isinstance(before.head, ConcatenatedHead)
    assert apply(before, Rename(3, "three")).head is before.head
    after = apply(before, Reject(3))
    assert isinstance(after.head, nn.Linear) and 3 not in predicted(after)


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ([Undo()], "There is no decision to undo since the stage ended; roll the run back instead."),
        ([Reject(3), Undo(), Undo()], "There is no decision to undo since the stage ended; roll the run back instead."),
        ([Rename(9, "x")], "There is no class with id 9; write an id from 0 to 5."),
        ([Reject(3), Reject(3)], "Class 3 (new-1.1) is rejected; write the id of an active class."),
        ([Split(3, LABELS)], "The split of class 3 needs its images; give those of the stage that found it."),
        ([Split(3, LABELS, names=("a",))], "The split of class 3 has 2 parts; write a name for each."),
    ],
)
def test_impossible_decisions_say_why(steps: list[Decision], sentence: str) -> None:
    with pytest.raises(InlayError) as caught:
        replay(found(), steps)
    assert str(caught.value) == sentence
    assert found().registry.history == ()


@pytest.mark.parametrize("labels", [(), (0, 0), (0, 1), (0, 2, 2), (1, 1, 2), (-1, 0, 0), (0, 10**9, 0)])
def test_labels_of_a_split_must_be_those_of_parts(labels: tuple[int, ...]) -> None:
    with pytest.raises(InlayError, match="needs two parts or more, none of them empty and one of two images"):
        apply(found(), Split(3, labels), features_of_class)


def test_a_split_needs_one_label_for_each_image() -> None:
    with pytest.raises(InlayError, match=r"The split of class 3 is of 2\d* images, but \d+ are given"):
        apply(found(), Split(3, (0, 1) * 100), features_of_class)


@pytest.mark.parametrize(
    "decision",
    [
        Rename(3, "höhle", "2026-10-01"),
        Merge((4, 5), 3),
        Split(3, (0, 1, 1), ("a", "b"), "noon"),
        Split(3, (0, 1, 1)),
        Reject(3),
        Undo("x"),
    ],
)
def test_decisions_survive_json(decision: Decision) -> None:
    assert decisions.from_json(json.loads(json.dumps(decisions.to_json(decision)))) == decision


def test_what_has_a_default_may_be_left_out_of_json() -> None:
    assert decisions.from_json({"decision": "undo"}) == Undo()
    assert decisions.from_json({"decision": "split", "id": 3, "labels": [0, 1, 1]}) == Split(3, (0, 1, 1))


WRONG_NAME = "A decision has a wrong name; write under 'decision' one of rename, merge, split, reject, undo."


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], WRONG_NAME),
        ({"decision": "burn"}, WRONG_NAME),
        ({"decision": ["undo"]}, WRONG_NAME),
        ({"decision": "rename", "id": 3}, "The decision 'rename' has wrong keys; write id, name, when."),
        ({"decision": "undo", "id": 3}, "The decision 'undo' has wrong keys; write when."),
        ({"decision": "reject", "id": True}, "The decision 'reject' has a wrong 'id'; write the id of a class."),
        ({"decision": "reject", "id": -1}, "The decision 'reject' has a wrong 'id'; write the id of a class."),
        ({"decision": "reject", "id": 3, "when": 4}, "The decision 'reject' has a wrong 'when'; write a text."),
        (
            {"decision": "merge", "ids": [3, "4"], "into": 5},
            "The decision 'merge' has a wrong 'ids'; write a list of ids of classes.",
        ),
        (
            {"decision": "split", "id": 3, "labels": "01"},
            "The decision 'split' has a wrong 'labels'; write a list of numbers of parts, from 0.",
        ),
    ],
)
def test_malformed_json_says_why(data: object, sentence: str) -> None:
    with pytest.raises(InlayError) as caught:
        decisions.from_json(data)
    assert str(caught.value) == sentence
