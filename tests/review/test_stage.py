import shutil
from pathlib import Path

import pytest
import torch

import inlay
from inlay.data import load
from inlay.decisions import Decision, Merge, Reject, replay
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from inlay.review.cards import class_cards, classes_of_points, map_places, plane_of
from inlay.review.stage import DecidedStage, open_stage
from tiny_digits import News


def _opened(run: Path, source: Path | None = None, taken: tuple[Decision, ...] = ()) -> tuple[DecidedStage, list[str]]:
    knowledge, news = inlay.load(run, device="cpu").knowledge, News()
    after = replay(knowledge, taken) if taken else knowledge
    return open_stage(knowledge, after, taken, None if source is None else str(source), news), news.notes


def _knowledge(run: Path) -> Knowledge:
    return inlay.load(run, device="cpu").knowledge


def test_images_are_found_without_being_told_where(run: Path, pictures: Path) -> None:
    stage, notes = _opened(run)
    assert notes == []
    assert len(stage.images.found) == len(stage.images) == 90
    assert {Path(stage.images.name(position)).parents[1] for position in range(90)} == {pictures / "new"}
    assert not stage.features.isnan().any()


def test_the_medoids_of_a_class_are_what_its_card_begins_with(run: Path, pictures: Path) -> None:
    stage, _ = _opened(run)
    for card in class_cards(stage):
        shown = [stage.images.fingerprints[position] for position in card.typical]
        assert shown == [medoid.pixels for medoid in card.entry.medoids[: len(shown)]]
        for medoid in card.entry.medoids:
            (print_,) = load(pictures / "new" / medoid.path, size=8, channels=3).fingerprints()
            assert print_ == medoid.pixels


def test_missing_and_changed_images_are_counted_and_one_is_named(run: Path, pictures: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(pictures / "new", tmp_path / "new"))
    first, second = _knowledge(run).registry.of_stage(1)[0].medoids[:2]
    (copied / first.path).unlink()
    (copied / second.path).write_bytes(b"no image")
    stage, notes = _opened(run, copied)
    assert "Found 88 of the 90 images of stage 1." in notes
    assert notes[-1].endswith(f" 2 are missing or have changed since, such as '{first.path}'.")
    assert [card.missing for card in class_cards(stage)] == [2, 0, 0]
    assert not class_cards(stage)[0].may_split


def test_cards_and_map_follow_decisions(run: Path) -> None:
    stage, _ = _opened(run, taken=(Merge((4,), 3), Reject(5)))
    (card,) = class_cards(stage)
    assert card.entry.id == 3 and card.nearest_new is None
    assert card.nearest_old is not None and card.nearest_old.stage == 0
    owners = classes_of_points(stage)
    assert map_places(stage) == list(range(90))
    assert owners.count(3) == card.entry.size and owners.count(None) == 90 - owners.count(3)
    assert plane_of(stage).shape == (90, 2)


def test_pixels_are_those_of_the_images(run: Path) -> None:
    stage, _ = _opened(run)
    pixels = stage.images.pixels([3, 50])
    for position, image in zip((3, 50), pixels, strict=True):
        assert torch.equal(load(stage.images.name(position), size=8, channels=3).images[0], image)
    assert stage.images.pixels([]).shape == (0, 3, 8, 8)


def test_another_folder_is_refused(run: Path, pictures: Path) -> None:
    with pytest.raises(InlayError, match="None of the 90 images of stage 1 is in"):
        _opened(run, pictures / "base")
