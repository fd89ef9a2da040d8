import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

import inlay as library
from inlay import Prediction
from inlay.data import load

Inlay = Callable[..., CompletedProcess[str]]
Refused = Callable[..., str]


@pytest.fixture
def some(pictures: Path, tmp_path: Path) -> Path:
    """A few images that a test may damage."""
    folder = tmp_path / "some"
    folder.mkdir()
    for image in sorted((pictures / "flat").iterdir())[::4]:
        shutil.copy(image, folder)
    return folder


def _rows(predictions: list[Prediction]) -> list[list[str]]:
    origins = {False: "labelled", True: "discovered"}
    return [[p.source, p.name, f"{p.probability:.3f}", origins[p.discovered]] for p in predictions]


def _printed(said: CompletedProcess[str]) -> list[list[str]]:
    return [line.split("\t") for line in said.stdout.splitlines()]


def test_files_and_folders_in_any_mixture(inlay: Inlay, discovered: Path, pictures: Path, some: Path) -> None:
    first, *_, last = sorted((pictures / "flat").iterdir())
    said = inlay("predict", discovered, first, some, last)
    learner = library.load(discovered)
    expected = [source for given in (first, some, last) for source in learner.predict(given)]
    assert (said.returncode, said.stderr) == (0, "")
    assert _printed(said) == _rows(expected)


def test_json_is_one_object_per_line(inlay: Inlay, discovered: Path, some: Path) -> None:
    said = inlay("predict", discovered, some, "--json")
    found = [json.loads(line) for line in said.stdout.splitlines()]
    expected = library.load(discovered).predict(some)
    assert [set(row) for row in found] == [{"source", "id", "name", "probability", "discovered"}] * len(expected)
    assert [(row["source"], row["id"], row["name"]) for row in found] == [(p.source, p.id, p.name) for p in expected]


def test_csv_takes_the_place_of_the_lines(inlay: Inlay, discovered: Path, some: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    said = inlay("predict", discovered, some, "--csv", file)
    assert (said.returncode, said.stdout) == (0, f"{file}\n")
    with open(file, newline="") as opened:
        header, *rows = csv.reader(opened)
    assert header == ["source", "id", "name", "probability", "origin"]
    assert [[row[0], row[2], f"{float(row[3]):.3f}", row[4]] for row in rows] == _rows(
        library.load(discovered).predict(some)
    )
    assert not list(tmp_path.glob(".out*"))


def test_a_csv_that_cannot_be_written(refused: Refused, fitted: Path, some: Path, tmp_path: Path) -> None:
    assert "cannot be written" in refused(fitted, "predict", fitted, some, "--csv", tmp_path / "no" / "out.csv")


def test_arrays_in_files(inlay: Inlay, discovered: Path, some: Path, tmp_path: Path) -> None:
    images = load(some, size=8, cache=False).images.permute(0, 2, 3, 1).numpy()
    several, one, grey = tmp_path / "several.npy", tmp_path / "one.npy", tmp_path / "grey.npy"
    np.save(several, images)
    np.save(one, images[0])
    np.save(grey, images[0, :, :, 0])
    rows = _printed(inlay("predict", discovered, several, one, grey))
    expected = [row[1:] for row in _rows(library.load(discovered).predict(some))]
    assert [row[0] for row in rows] == [
        *(f"{several}#{number}" for number in range(len(images))),
        f"{one}#0",
        f"{grey}#0",
    ]
    assert [row[1:] for row in rows] == [*expected, expected[0], expected[0]]


def test_one_image_as_an_array(discovered: Path, some: Path) -> None:
    learner = library.load(discovered)
    pixels = load(some, size=8, cache=False).images.permute(0, 2, 3, 1)
    expected = learner.predict(pixels[:1])
    assert learner.predict(pixels[0]) == learner.predict(pixels[0].numpy()) == expected
    assert learner.predict(pixels[0, :, :, 0]) == expected


def test_bad_images_are_named_and_the_others_answered(inlay: Inlay, fitted: Path, some: Path) -> None:
    first, second, *rest = sorted(some.iterdir())
    first.write_bytes(b"this is no image")
    second.write_bytes(second.read_bytes()[:60])
    for given in ([some], [first, second, *rest]):
        said = inlay("predict", fitted, *given)
        assert said.returncode == 1
        assert [row[0] for row in _printed(said)] == [str(file) for file in rest]
        sentences = said.stderr.splitlines()
        assert sentences[0].startswith(f"'{first}' cannot be read as an image (no known image format); ")
        assert sentences[1].startswith(f"'{second}' cannot be read as an image (")
        assert len(sentences) == 2
    skipping = inlay("predict", fitted, some, "--skip-bad")
    assert (skipping.returncode, skipping.stdout) == (0, said.stdout)
    assert skipping.stderr == f"Left out 2 unreadable images, such as {first}.\n"


@pytest.mark.parametrize("options", [(), ("--skip-bad",)])
def test_nothing_but_bad_images(inlay: Inlay, fitted: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"this is no image")
    said = inlay("predict", fitted, bad, *options)
    assert (said.returncode, said.stdout) == (1, "")
    assert str(bad) in said.stderr and said.stderr.count("\n") == 1


def test_paths_of_stdin_are_answered_one_by_one(fitted: Path, some: Path, tmp_path: Path) -> None:
    """Each answer comes before the next path is given."""
    first, second, third, *_ = sorted(some.iterdir())
    second.write_bytes(b"this is no image")
    expected = _rows(library.load(fitted).predict([first, third]))
    command = [sys.executable, "-m", "inlay", "predict", str(fitted), "-", "--device", "cpu"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=1, **pipes) as process:  # type: ignore[call-overload]
        for given, answers in ((first, process.stdout), (second, process.stderr), (third, process.stdout)):
            process.stdin.write(f"{given}\n")
            process.stdin.flush()
            answer = answers.readline().rstrip("\n")
            assert answer.startswith(f"'{given}' cannot") if given == second else answer.split("\t") in expected
        rest, complaints = process.communicate(f"\n{tmp_path / 'missing.png'}\n", timeout=60)
    assert rest == ""
    assert complaints == f"There is no file or folder '{tmp_path / 'missing.png'}'; check the spelling of its path.\n"
    assert process.returncode == 1


def test_what_is_no_source_of_images(refused: Refused, fitted: Path, some: Path, tmp_path: Path) -> None:
    image = sorted(some.iterdir())[0]
    assert "Write - alone" in refused(fitted, "predict", fitted, image, "-")
    assert "There is no file or folder" in refused(fitted, "predict", fitted, image, tmp_path / "gone.png")
    assert "cannot be read as an array" in refused(fitted, "predict", fitted, tmp_path / "gone.npy")
    np.save(tmp_path / "wide.npy", np.zeros((2, 8, 8, 5), dtype=np.uint8))
    assert "with 1 or 3 channels" in refused(fitted, "predict", fitted, tmp_path / "wide.npy")
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object))
    assert "cannot be read as an array" in refused(fitted, "predict", fitted, tmp_path / "objects.npy")
