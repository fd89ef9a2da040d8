import io
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import inlay
from inlay.data import load
from inlay.engine.progress import QuietProgress
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from inlay.registry import Medoid
from inlay.review.server.images import StageImages, folder_of_stage
from inlay.review.server.session import open_session
from tiny_digits import News, digits
from tiny_runs import two_stages

CPU = torch.device("cpu")


def _knowledge(run: Path) -> Knowledge:
    return inlay.load(run, device="cpu").knowledge


def _read(folder: Path) -> inlay.data.ImageSet:
    return load(folder, size=(8, 8), channels=3)


def test_images_are_found_by_their_pixels_wherever_they_are(run: Path, pictures: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for number, file in enumerate(sorted(pictures.rglob("*.png"), reverse=True)):
        shutil.copy(file, moved / f"{number}.png")
    knowledge = _knowledge(run)
    found = StageImages(knowledge, _read(moved), "elsewhere")
    assert found.found.tolist() == list(range(90))
    there = StageImages(knowledge, _read(pictures / "new"), "new")
    for position in (0, 31, 89):
        assert Path(found.name(position)).read_bytes() == Path(there.name(position)).read_bytes()
    told: list[tuple[int, int]] = []
    features = found.features(knowledge, lambda done, all: told.append((done, all)))
    torch.testing.assert_close(features, there.features(knowledge, lambda done, all: None))
    assert told == [(0, 90), (90, 90)]


def test_pictures_come_from_the_files(run: Path, pictures: Path) -> None:
    images = StageImages(_knowledge(run), _read(pictures / "new"), "new")
    with Image.open(io.BytesIO(images.picture(3))) as shown, Image.open(images.name(3)) as file:
        assert shown.format == "PNG"
        assert shown.convert("L").tobytes() == file.convert("L").tobytes()


def test_a_large_picture_is_made_small(run: Path, pictures: Path, tmp_path: Path) -> None:
    knowledge = _knowledge(run)
    with Image.open(next((pictures / "new").rglob("*.png"))) as file:
        file.resize((800, 800), Image.Resampling.NEAREST).save(tmp_path / "large.png")
    large = _read(tmp_path / "large.png")
    record = replace(knowledge.record, fingerprints=large.fingerprints(), clusters=(0,))
    images = StageImages(replace(knowledge, record=record), large, "large")
    with Image.open(io.BytesIO(images.picture(0))) as shown:
        assert shown.size == (256, 256)


def test_images_of_arrays_are_shown_as_the_network_sees_them() -> None:
    knowledge = two_stages().knowledge
    images = StageImages(knowledge, digits(["5", "6"]), "arrays")
    with Image.open(io.BytesIO(images.picture(7))) as shown:
        assert (shown.mode, shown.size) == ("L", (8, 8))
        assert shown.tobytes() == digits(["5", "6"]).images[7].numpy().tobytes()


def test_a_file_that_has_changed_is_not_shown(run: Path, pictures: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(pictures / "new", tmp_path / "new"))
    images = StageImages(_knowledge(run), _read(copied), "new")
    Image.new("L", (8, 8), 99).save(images.name(5))
    with pytest.raises(InlayError, match=r"has changed since .* start `inlay review` again\.$"):
        images.picture(5)


@pytest.mark.parametrize("position", [-1, 90, 10**30])
def test_there_is_no_picture_outside_the_stage(run: Path, pictures: Path, position: int) -> None:
    images = StageImages(_knowledge(run), _read(pictures / "new"), "new")
    with pytest.raises(InlayError, match="There is no image"):
        images.picture(position)


def test_a_folder_without_the_images_is_refused(run: Path, pictures: Path) -> None:
    with pytest.raises(InlayError, match=r"^None of the 90 images of stage 1 is in the base; write --images"):
        StageImages(_knowledge(run), _read(pictures / "base"), "the base")


def test_missing_images_are_told_and_their_classes_cannot_be_split(run: Path, pictures: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(pictures / "new", tmp_path / "new"))
    news = News()
    knowledge = _knowledge(run)
    first = StageImages(knowledge, _read(copied), "new")
    Path(first.name(0)).unlink()
    with open_session(run, str(copied), CPU, news) as session:
        assert "Found 89 of the 90 images of stage 1." in news.notes
        assert session.features[0].isnan().all()
        lacking = 3 + knowledge.record.clusters[0]
        assert [session.may_split(id) for id in (3, 4, 5)] == [id != lacking for id in (3, 4, 5)]
        with pytest.raises(InlayError, match=f"The class 'new-1.{lacking - 2}' cannot be split into 2 parts"):
            session.decide({"decision": "split", "id": lacking, "parts": 2}, 0)
        session.decide({"decision": "rename", "id": lacking, "name": "cat"}, 0)
    assert session.revision == 1


def test_the_folder_is_that_of_the_medoids(run: Path, pictures: Path) -> None:
    knowledge = _knowledge(run)
    assert folder_of_stage(knowledge) == pictures / "new"
    knowledge = replace(knowledge, record=replace(knowledge.record, source=""))
    for id in (3, 4, 5):
        knowledge.registry.annotate(id, medoids=[])
    with pytest.raises(InlayError, match=r"^The images of stage 1 are not where they were; write --images"):
        folder_of_stage(knowledge)
    files = sorted((pictures / "new").rglob("*.png"))
    knowledge.registry.annotate(3, medoids=[Medoid(str(files[0]), "")])
    assert folder_of_stage(knowledge) == files[0].parent
    knowledge.registry.annotate(4, medoids=[Medoid(str(files[-1]), "")])
    assert folder_of_stage(knowledge) == pictures / "new"
    knowledge.registry.annotate(4, medoids=[Medoid("/gone/away/1.png", "")])
    knowledge.registry.annotate(3, medoids=[])
    with pytest.raises(InlayError, match="not where they were"):
        folder_of_stage(knowledge)


def test_a_run_without_discovered_classes_has_nothing_to_review(run: Path, pictures: Path) -> None:
    inlay.load(run, device="cpu").rollback(0)
    with (
        pytest.raises(InlayError, match=r"has no discovered classes yet; find some with `inlay discover"),
        open_session(run, str(pictures / "new"), CPU, QuietProgress()),
    ):
        pass
