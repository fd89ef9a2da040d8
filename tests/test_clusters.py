import csv
import json
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import pytest

from inlay.clusters import SortedImage, sorted_images, write_csv, write_label_studio
from inlay.decisions import Decision, Merge, Reject, Rename, Split, replay
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from tiny_digits import digits
from tiny_runs import FIRST, SECOND, base_learner, two_stages


def _after(decisions: Sequence[Decision]) -> tuple[Knowledge, Knowledge]:
    """What the second stage left behind, and what is known after decisions about it."""
    before = two_stages().knowledge
    features = before.features(digits(SECOND))
    ids = [entry.id for entry in before.registry.of_stage(2)]

    def of_class(id: int) -> object:
        return features[[place for place, found in enumerate(before.record.clusters) if ids[found] == id]]

    return before, replay(before, decisions, of_class)  # type: ignore[arg-type]


def _by_name(images: Sequence[SortedImage]) -> dict[str, SortedImage]:
    return {image.path: image for image in images}


def test_images_have_the_class_of_their_stage_and_its_probability() -> None:
    learner = two_stages()
    found = learner.clusters(images=digits(SECOND))
    ids = [entry.id for entry in learner.classes.of_stage(2)]
    assert [image.class_id for image in found] == [ids[cluster] for cluster in learner.stages[2].clusters]
    probabilities = learner.knowledge.logits(digits(SECOND)).softmax(dim=1)
    for image, row in zip(found, probabilities, strict=True):
        assert image.class_id is not None
        assert image.class_name == learner.classes.names[image.class_id]
        assert image.confidence == pytest.approx(float(row[image.class_id]), abs=1e-6)
        assert (image.stage, image.verdict) == (2, "new")


def test_an_earlier_stage_and_strangers_among_its_images() -> None:
    learner = two_stages()
    found = learner.clusters(1, images=digits([*FIRST, *SECOND]))
    assert len(found) == len(learner.stages[1].clusters) == 80
    assert {image.class_id for image in found} == {3, 4}
    assert {image.stage for image in found} == {1}


def test_decisions_move_images_and_names() -> None:
    before, now = _after([Rename(5, "cat"), Merge((6,), 5)])
    found = sorted_images(before, [Rename(5, "cat"), Merge((6,), 5)], now, digits(SECOND))
    assert {(image.class_id, image.class_name) for image in found} == {(5, "cat")}


def test_images_of_a_rejected_class_have_none() -> None:
    before, now = _after([Reject(6)])
    clusters = before.record.clusters
    for image, cluster in zip(sorted_images(before, [Reject(6)], now, digits(SECOND)), clusters, strict=True):
        assert (image.class_id is None) == (cluster == 1)
        if cluster == 1:
            assert (image.class_name, image.confidence, image.verdict) == ("", None, "new")


def test_a_class_that_a_later_stage_merged_away_leads_to_its_heir() -> None:
    learner = two_stages()
    first = learner._history.reviewed(1)[0]
    now = replay(learner.knowledge, [Merge((3,), 5)])
    found = sorted_images(first, [], now, digits(FIRST))
    assert {image.class_id for image in found} == {4, 5}


def test_parts_of_a_split_take_their_images() -> None:
    count = two_stages().stages[2].clusters.count(0)
    split = Split(5, tuple(number % 2 for number in range(count)))
    before, now = _after([split])
    found = sorted_images(before, [split], now, digits(SECOND))
    assert {image.class_id for image in found} == {6, 7, 8}
    assert sum(image.class_id == 7 for image in found) == (count + 1) // 2


def test_stages_without_discovered_classes_and_lost_images_are_refused() -> None:
    with pytest.raises(InlayError, match=r"^Stage 0 found no classes by itself; write the number of a discovery stage"):
        two_stages().clusters(0, images=digits(FIRST))
    with pytest.raises(InlayError, match=r"^None of the images of stage 2 is there; write --images"):
        two_stages().clusters(images=digits(FIRST))
    with pytest.raises(InlayError, match="are not where they were"):
        two_stages().clusters()
    with pytest.raises(InlayError, match=r"^There is no stage 3; write a number from 1 to 2"):
        two_stages().clusters(3)
    with pytest.raises(InlayError, match="found no classes by itself"):
        base_learner().report("a.html")


ROWS = [
    SortedImage("/photos/a b,\u00e9&.png", 4, 'a "cat"', 0.25, 2, "new"),
    SortedImage("/photos/old.png", 0, "0", 1.0, 2, "known"),
    SortedImage("array#3", None, "", None, 2, "neither"),
]


def test_a_table_has_every_attribute(tmp_path: Path) -> None:
    write_csv(ROWS, tmp_path / "a.csv")
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "class_id", "class_name", "confidence", "stage", "verdict"]
    for row, image in zip(rows, ROWS, strict=True):
        assert [*row.values()] == [
            "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)
            for value in astuple(image)
        ]


def test_label_studio_gets_tasks_with_predictions(tmp_path: Path) -> None:
    write_label_studio(ROWS, tmp_path / "tasks.json", version="shop.inlay stage 2")
    first, second, third = json.loads((tmp_path / "tasks.json").read_text())
    assert first["data"] == {
        "image": "/data/local-files/?d=photos/a%20b%2C%C3%A9%26.png",
        "stage": 2,
        "verdict": "new",
        "class_id": 4,
    }
    (prediction,) = first["predictions"]
    assert (prediction["model_version"], prediction["score"]) == ("shop.inlay stage 2", 0.25)
    (result,) = prediction["result"]
    assert result == {
        "id": "class",
        "from_name": "choice",
        "to_name": "image",
        "type": "choices",
        "value": {"choices": ['a "cat"']},
    }
    assert second["predictions"][0]["result"][0]["value"] == {"choices": ["0"]}
    assert "predictions" not in third


@pytest.mark.parametrize("write", [write_csv, write_label_studio])
def test_files_are_not_written_over_unless_told(tmp_path: Path, write: object) -> None:
    file = tmp_path / "out"
    file.write_text("mine")
    with pytest.raises(InlayError, match="is there already; choose another name, or pass --overwrite"):
        write(ROWS, file)  # type: ignore[operator]
    assert file.read_text() == "mine"
    write(ROWS, file, overwrite=True)  # type: ignore[operator]
    assert "cat" in file.read_text()
