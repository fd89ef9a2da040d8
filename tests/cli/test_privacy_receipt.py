"""What a run folder stores, and that no image is in it."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

import inlay as library
from image_traces import layouts, pieces_of, traces

Inlay = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Crops of two photographs, PNG in one folder per class and JPEG without classes."""
    folder = tmp_path_factory.mktemp("photos")
    for name, photo in zip(("temple", "flower"), load_sample_images().images, strict=True):
        for kind, suffix, first in (("labelled", "png", 40), ("new", "jpg", 200)):
            for number in range(12):
                top, left = first + 8 * number, 60 + 40 * number
                file = folder / kind / (name if kind == "labelled" else "") / f"{name}{number}.{suffix}"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(photo[top : top + 16, left : left + 16]).save(file)
    return folder


@pytest.fixture(scope="module")
def run(inlay: Inlay, photos: Path, quick: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has fitted, discovered, matched, predicted and gone back, so that all it ever writes is there."""
    run = tmp_path_factory.mktemp("private") / "photos.inlay"
    for arguments in (
        ("fit", photos / "labelled", "--out", run, "--backbone", "resnet8", *quick),
        ("discover", run, photos / "new", "--classes", 2),
        ("predict", run, photos / "new"),
        ("rollback", run, "--to", 0),
        ("discover", run, photos / "new", "--classes", 3),
    ):
        said = inlay(*arguments)
        assert said.returncode == 0, said.stderr
    return run


def test_no_image_is_in_the_run_folder(run: Path, photos: Path) -> None:
    files = [file for file in photos.rglob("*") if file.is_file()]
    images = [layout for file in files for layout in layouts(np.asarray(Image.open(file)))]
    pieces = pieces_of([*images, *(file.read_bytes() for file in files)])
    assert len(files) == 48 and len(pieces) > 40_000
    stored = [file for file in run.rglob("*") if file.is_file()]
    assert {file.suffix for file in stored} == {".json", ".safetensors", ""}
    assert {file: found[:3] for file in stored if (found := traces(file.read_bytes(), pieces))} == {}
    assert traces(b"weights" + images[0][40:140] + b"weights", pieces), "the search finds a part of an image"
    assert traces(b"weights" + files[0].read_bytes(), pieces)


def test_info_lists_what_is_stored(inlay: Inlay, run: Path) -> None:
    knowledge = library.load(run).knowledge
    lines = inlay("info", run).stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("Stored per class: "))
    sizes = [int(part.rsplit(" ", 1)[1].rstrip(".").replace(",", "")) for part in lines[place + 1].split(", ")]
    total = int(lines[place].split()[3].replace(",", ""))
    assert lines[place] == f"Stored per class: {total:,} bytes, with full statistics of its features; no images."
    assert total == pytest.approx(sum(sizes), abs=len(sizes)), "what is listed is all there is"
    size = knowledge.statistics.mean.shape[1]
    assert lines[place + 1].startswith(
        f"In bytes per class: mean of the features {4 * size}, counts of the features 8, std of the features "
        f"{4 * size}, correlation of the features {2 * size * size:,}, weights of the head {4 * (size + 1)}, "
    )
    assert lines[place + 2] == (
        "Stored per unlabelled image, 24 in all: its class and a fingerprint of 8 bytes; no pixels."
    )
    assert lines[-1] == str(run)
