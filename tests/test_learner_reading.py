from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

import inlay
from inlay.data import cache
from inlay.data.decode import _FILES_PER_TASK
from tiny_runs import BASE, base_learner, fresh, quick_learner

READING = ["reading images", f"{_FILES_PER_TASK}", "60", "finish"]


class Told:
    """Keeps the work it is told of, as long as it has no losses."""

    def __init__(self) -> None:
        self.work: list[str] = []

    def note(self, text: str) -> None:
        pass

    def start(self, name: str, total: int, done: int) -> None:
        self.work.append(name)

    def step(self, done: int, losses: Mapping[str, float]) -> None:
        if not losses:
            self.work.append(str(done))

    def finish(self) -> None:
        self.work.append("finish")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "cache"))
    images = fresh(BASE)
    assert images.labels is not None and len(images) == 60
    for number, (pixels, label) in enumerate(zip(images.images, images.labels.tolist(), strict=True)):
        folder = tmp_path / "photos" / BASE[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0].numpy()).save(folder / f"{number:02d}.png")
    return tmp_path / "photos"


def test_reading_many_files_is_shown_unless_they_are_in_the_cache(photos: Path, tmp_path: Path) -> None:
    told = Told()
    learner = inlay.load(base_learner().save(tmp_path / "run"), device="cpu", progress=told)
    learner.evaluate(photos)
    assert told.work == READING
    learner.evaluate(photos)
    assert told.work == READING
    learner.predict(sorted(photos.rglob("*.png"))[:5])
    assert told.work == READING


def test_fit_shows_the_reading_before_the_training(photos: Path) -> None:
    told = Told()
    quick_learner(progress=told).fit(photos)
    assert told.work[:4] == READING and len(told.work) > 4


def test_images_to_predict_are_not_kept(photos: Path, tmp_path: Path) -> None:
    told = Told()
    learner = inlay.load(base_learner().save(tmp_path / "run"), device="cpu", progress=told)
    assert len(learner.predict(photos)) == 60
    assert told.work == READING
    assert not cache.cache_folder().exists()
