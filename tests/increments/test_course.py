import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

from increment_cases import course, quick, standings
from inlay.data import ImageSet
from inlay.errors import InlayError
from inlay.increments.course import Course, Standing, later_pace
from inlay.increments.memory import Memory
from inlay.increments.orders import ORDERS, class_order
from inlay.increments.scores import StageScores, score_stage, summarise
from inlay.increments.systems import icarl
from inlay.settings import TrainingSettings
from tiny_digits import digits


@pytest.fixture(scope="module")
def learned() -> list[Standing]:
    return standings(quick(icarl.FAIR))


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("numpy-1993", [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]),
        ("icarl-1993", [87, 0, 52, 58, 44, 91, 68, 97, 51, 15]),
        ("podnet-2", [58, 30, 93, 69, 21]),
        ("podnet-3", [71, 54, 45, 32, 4]),
        ("natural", [0, 1, 2, 3, 4]),
    ],
)
def test_orders_start_as_published(name: str, start: list[int]) -> None:
    order = class_order(name)
    assert order[: len(start)] == start and sorted(order) == list(range(100))


def test_orders_that_do_not_exist_are_told() -> None:
    with pytest.raises(InlayError, match=f"write one of: {', '.join(ORDERS)}"):
        class_order("icarl")
    with pytest.raises(InlayError, match="one of 100 classes, not 10; write numpy-1993"):
        class_order("podnet-2", 10)
    assert sorted(class_order("numpy-1993", 7)) == list(range(7))


def test_classes_are_numbered_as_they_come() -> None:
    images = course()
    assert [images.seen(index) for index in range(3)] == [3, 5, 7]
    originals = digits([str(name) for name in range(7)], last=24)
    assert originals.labels is not None
    for stage, names in enumerate([[4, 0, 6], [1, 5], [2, 3]]):
        rows = images.rows(stage)
        assert sorted(set(originals.labels[rows].tolist())) == sorted(names) and len(rows) == 24 * len(names)
        for place, name in enumerate(names):
            mine = images.train_labels == sum(images.cut[:stage]) + place
            assert originals.labels[mine].unique().tolist() == [name]  # type: ignore[no-untyped-call]


def test_the_base_stage_alone_decides_the_normalisation() -> None:
    train, test = digits(["0", "1", "2"], last=9), digits(["0", "1", "2"], 60, 65)
    other = ImageSet(train.images.clone(), train.names, train.labels, train.class_names)
    assert train.labels is not None
    other.images[train.labels == 2] = 0
    forms = [Course(images, test, [0, 1, 2], (2, 1)).form for images in (train, other)]
    assert forms[0] == forms[1] != Course(other, test, [0, 2, 1], (2, 1)).form


def test_stages_that_cannot_be_cut_are_told() -> None:
    with pytest.raises(InlayError, match="Stages of 6, 2 classes cannot be cut from 7 classes"):
        course(cut=(6, 2))


def test_memory_is_ranked_and_cut() -> None:
    features = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [1.0, 0.1], [0.0, 1.0]])
    memory = Memory().extended(features, torch.tensor([0, 0, 1, 0, 1]), torch.tensor([10, 11, 12, 13, 14]), 2)
    assert memory.labels.tolist() == [0, 0, 1, 1] and memory.ranked[1].tolist() == [12, 14]
    longer = memory.extended(features[:2], torch.tensor([2, 2]), torch.tensor([20, 21]), 1)
    assert longer.rows.tolist() == [int(memory.ranked[0][0]), 12, int(longer.ranked[2][0])]
    assert longer.labels.tolist() == [0, 1, 2] and Memory().rows.tolist() == Memory().labels.tolist() == []
    with pytest.raises(ValueError, match="labels must be 2 or more; got 1"):
        memory.extended(features[:1], torch.tensor([1]), torch.tensor([1]), 1)


def test_memory_holds_images_of_all_classes_seen(learned: list[Standing]) -> None:
    images = course()
    for standing in learned:
        rows = standing.memory.rows
        assert standing.memory.labels.tolist() == [c for c in range(images.seen(standing.index)) for _ in range(4)]
        assert torch.equal(images.train_labels[rows], standing.memory.labels)
    for before, after in itertools.pairwise(learned):
        assert torch.equal(after.memory.rows[: len(before.memory.rows)], before.memory.rows)


def test_a_shared_memory_shrinks() -> None:
    system = quick(icarl.FAIR, memory__per_class=0, memory__total=21, base__epochs=0, stage__epochs=0)
    assert [len(standing.memory.rows) for standing in standings(system)] == [3 * 7, 5 * 4, 7 * 3]


def _fraction(scores: Tensor, labels: Tensor) -> float:
    right = [int(row.argmax()) == int(label) for row, label in zip(scores, labels, strict=True)]
    return sum(right) / len(right)


def test_scores_are_those_of_all_classes_seen(learned: list[Standing]) -> None:
    images, standing = course(), learned[1]
    found = score_stage(images, standing)
    mine = images.test_labels < 5
    scores = standing.classifier(images.form.prepare(images.test[mine]))
    labels = images.test_labels[mine]
    assert scores.shape[1] == 5 and found.cnn == pytest.approx(_fraction(scores, labels))
    for index, group in enumerate(found.groups):
        chosen = labels < 3 if index == 0 else labels >= 3
        assert group == pytest.approx(_fraction(scores[chosen], labels[chosen]))
    assert found.nme is not None and found.nme > 0.3
    none = dataclasses.replace(standing, memory=Memory())
    assert score_stage(images, none).nme is None


def test_summary_computed_by_hand() -> None:
    stages = [
        StageScores(0.9, 0.8, (0.9,)),
        StageScores(0.7, 0.6, (0.6, 0.8)),
        StageScores(0.5, 0.7, (0.7, 0.5, 0.3)),
    ]
    found = summarise(stages)
    # The best of the first classes was .9, of the second .8.
    assert found is not None and found.forgetting == pytest.approx(((0.9 - 0.7) + (0.8 - 0.5)) / 2)
    assert found.average == pytest.approx(0.7) and found.last == 0.5
    nearest = summarise(stages, "nme")
    assert nearest is not None and nearest.average == pytest.approx(0.7) and nearest.last == 0.7
    assert summarise([StageScores(0.9, None, (0.9,))], "nme") is None
    alone = summarise(stages[:1])
    assert alone is not None and alone.forgetting == 0


def test_later_stages_are_recorded_on_a_gpu_and_not_compiled() -> None:
    long = TrainingSettings(epochs=1000)
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert later_pace(long, cpu) == long
    assert later_pace(long, gpu) == dataclasses.replace(long, pace="graph")
    for pace in ("eager", "compile"):
        chosen = dataclasses.replace(long, pace=pace)
        assert later_pace(chosen, gpu) == chosen
