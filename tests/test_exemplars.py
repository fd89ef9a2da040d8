import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import inlay
from inlay import Learner
from inlay.cli import app
from inlay.data import ImageSet, load
from inlay.engine.feed import HostPixels, JoinedPixels, feed_of, joined_pixels
from inlay.engine.progress import Progress
from inlay.errors import InlayError
from inlay.exemplars import exemplar_folder, kept_exemplars
from inlay.increments.herding import herd
from tiny_digits import News, digits
from tiny_runs import BASE, FIRST, SECOND, quick_learner, same_weights

COUNT = 3


@functools.cache
def _template() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    quick_learner(run=Path(folder.name) / "run").fit(digits(BASE), exemplars=COUNT)
    return folder


def _begun(folder: Path, kept: bool = True) -> Learner:
    """A run of the base classes, with images of them or without."""
    shutil.copytree(Path(_template().name) / "run", folder)
    if kept:
        shutil.copytree(Path(_template().name) / "run-exemplars", exemplar_folder(folder))
    return _opened(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has kept images of its base classes and of two that it was taught."""
    folder = tmp_path_factory.mktemp("exemplars") / "run"
    _begun(folder).learn(digits(FIRST), exemplars=COUNT)
    return folder


def _opened(folder: Path, progress: Progress | None = None) -> Learner:
    return inlay.load(folder, device="cpu", progress=progress)


def _pixels(images: ImageSet) -> set[bytes]:
    return {image.numpy().tobytes() for image in images.images}


def test_images_of_every_class_are_kept_beside_the_run(run: Path) -> None:
    beside = _opened(run).kept_beside
    assert beside is not None
    folder, kept = beside
    assert folder == run.parent / "run-exemplars" and sorted(run.parent.iterdir()) == [run, folder]
    assert kept.classes.tolist() == [number for number in range(5) for _ in range(COUNT)] and kept.class_count == 5
    for number, name in enumerate([*BASE, *FIRST]):
        own = kept.images[kept.classes == number]
        assert {image.numpy().tobytes() for image in own} <= _pixels(digits([name]))


def test_they_are_those_that_herding_ranks_first(tmp_path: Path) -> None:
    learner, images = _begun(tmp_path / "run"), digits(BASE)
    assert images.labels is not None and learner.kept_beside is not None
    rows = torch.cat(herd(learner.knowledge.features(images), images.labels, len(BASE), COUNT))
    assert torch.equal(learner.kept_beside[1].images, images.images[rows])


def test_no_image_is_in_the_run_folder(run: Path) -> None:
    files = b"".join(file.read_bytes() for file in run.rglob("*") if file.is_file())
    assert not any(pixels in files for pixels in _pixels(digits([*BASE, *FIRST])))
    kept = b"".join(file.read_bytes() for file in exemplar_folder(run).iterdir())
    assert any(pixels in kept for pixels in _pixels(digits(BASE)))


def test_what_is_kept_is_learned_again(tmp_path: Path) -> None:
    with_some, without = _begun(tmp_path / "some"), _begun(tmp_path / "none", kept=False)
    assert same_weights(with_some, without) and without.kept_beside is None
    records = [learner.learn(digits(FIRST)) for learner in (with_some, without)]
    assert [(record.found or {}).get("exemplars") for record in records] == [len(BASE) * COUNT, None]
    assert [record.images for record in records] == [80, 80] and len(records[0].clusters) == 80
    assert not same_weights(with_some, without)
    assert with_some.classes.names == without.classes.names == (*BASE, *FIRST)


def test_repeating_the_command_keeps_what_a_stopped_one_did_not(tmp_path: Path) -> None:
    learner, news = _begun(tmp_path / "run"), News()
    learner.learn(digits(FIRST))
    again = _opened(tmp_path / "run", news)
    again.learn(digits(FIRST), exemplars=2)
    assert again.kept_beside is not None and again.kept_beside[1].classes.tolist() == [
        0,
        0,
        0,
        1,
        1,
        1,
        2,
        2,
        2,
        3,
        3,
        4,
        4,
    ]
    assert "nothing was done" in news.notes[0] and "Up to 2 images of each class are kept in" in news.notes[1]


def test_images_of_stages_that_were_rolled_back_do_not_count(tmp_path: Path) -> None:
    learner = _begun(tmp_path / "run")
    learner.learn(digits(FIRST), exemplars=COUNT)
    learner.rollback(0)
    assert learner.kept_beside is not None and learner.kept_beside[1].class_count == len(BASE)
    learner.learn(digits(SECOND))
    assert learner.kept_beside[1].class_count == len(BASE)


def test_damaged_files_are_told(run: Path, tmp_path: Path) -> None:
    learner = _begun(tmp_path / "run")
    file = exemplar_folder(tmp_path / "run") / "stage-000.npz"
    whole = file.read_bytes()
    shape = np.zeros((3, 1, 9, 9), np.uint8)
    identity = np.array(learner.stages[0].identity)
    for number, damage in enumerate(("cut", "shape", "pickle", "classes", "unknown")):
        if damage == "cut":
            file.write_bytes(whole[: len(whole) // 2])
        else:
            images = shape if damage == "shape" else np.zeros((3, 1, 8, 8), np.uint8)
            moved = {"classes": -1, "unknown": 1}.get(damage, 0)
            classes = np.array([None] * 3) if damage == "pickle" else np.arange(3) + moved
            np.savez(file, images=images, classes=classes, identity=identity)
        with pytest.raises(InlayError, match="is damaged; delete it to go on without the images it held"):
            learner.learn(digits(FIRST))
        assert len(learner.stages) == 1, number
    file.unlink()
    learner.learn(digits(FIRST))
    assert len(learner.stages) == 2


def test_a_learner_without_folder_is_told_before_it_trains() -> None:
    learner = quick_learner()
    with pytest.raises(InlayError, match=r"pass run=FOLDER"):
        learner.fit(digits(BASE), exemplars=1)
    with pytest.raises(InlayError, match="must be 0 or more; got -1"):
        learner.fit(digits(BASE), exemplars=-1)
    assert not learner.stages


def test_joined_pixels_are_those_of_both() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randint(0, 256, (n, 1, 4, 4), generator=generator, dtype=torch.uint8) for n in (5, 3))
    both, wanted = torch.cat([first, second]), torch.tensor([7, 0, 4, 5, 5, 1])
    joined = joined_pixels(HostPixels(first), second)
    assert isinstance(joined, JoinedPixels) and len(joined) == 8 and joined.shape == (1, 4, 4)
    for images in (joined, joined_pixels(first, second)):
        feed = feed_of(images, torch.device("cpu"))
        assert torch.equal(next(iter(feed.batches([wanted]))), both[wanted])
    assert torch.equal(joined.read(wanted[:0]), both[:0])


def test_the_commands_keep_use_and_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part, names in (("base", BASE), ("more", FIRST)):
        images = digits(names, last=20)
        assert images.labels is not None
        for number, (pixels, label) in enumerate(zip(images.images, images.labels.tolist(), strict=True)):
            folder = tmp_path / part / names[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[0].numpy()).save(folder / f"{number}.png")
    run, quick = str(tmp_path / "run"), ["--set", "base.training.epochs=1", "--device", "cpu", "--exemplars", "2"]
    app(
        ["fit", str(tmp_path / "base"), "--out", run, "--backbone", "resnet8", "--no-self-test", *quick],
        standalone_mode=False,
    )
    more = ["--set", "training.epochs=1", "--device", "cpu", "--exemplars", "2", "--stream"]
    app(["learn", run, str(tmp_path / "more"), *more], standalone_mode=False)
    capsys.readouterr()
    app(["info", run], standalone_mode=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "run-exemplars: 10 whole images of 5 classes, as --exemplars asked; delete that folder" in said
    learner = _opened(Path(run))
    assert (learner.stages[1].found or {})["exemplars"] == 6
    kept = kept_exemplars(Path(run), learner.stages, learner.knowledge.form, len(learner.classes))
    assert kept is not None
    read = load(tmp_path / "more", size=8, cache=False)
    assert {image.numpy().tobytes() for image in kept.images[kept.classes >= 3]} <= _pixels(read)
