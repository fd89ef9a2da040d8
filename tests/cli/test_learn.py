import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import inlay as library
from tiny_digits import digits

Inlay = Callable[..., CompletedProcess[str]]

PAGE = Path(__file__).parents[2] / "docs" / "labelled.md"


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five images of each of two classes that no other run has seen."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("five")
    chosen = digits(["7", "8"], last=5)
    assert chosen.labels is not None
    for number, (image, label) in enumerate(zip(chosen.images, chosen.labels.tolist(), strict=True)):
        file = folder / ("seven", "eight")[label] / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(image[0].numpy()).save(file)
    return folder


@pytest.fixture(scope="module")
def taught(
    inlay: Inlay, discovering: tuple[Path, CompletedProcess[str]], five: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, CompletedProcess[str]]:
    """A run that discovered three classes and was taught two, and what the command said."""
    run = Path(shutil.copytree(discovering[0], tmp_path_factory.mktemp("taught") / "digits.inlay"))
    return run, inlay("learn", run, five)


def test_names_come_from_the_folders(taught: tuple[Path, CompletedProcess[str]]) -> None:
    run, said = taught
    assert said.returncode == 0, said.stderr
    assert re.search(r"Stage 2: 2 classes from 10 images in \d+ s; 9 classes in all\.", said.stdout)
    assert "parameters before and after." in said.stdout and said.stdout.endswith(f"{run}\n")
    assert library.load(run, device="cpu").classes.names[-2:] == ("eight", "seven")


def test_info_tells_labelled_images_apart(inlay: Inlay, taught: tuple[Path, CompletedProcess[str]]) -> None:
    shown = inlay("info", taught[0]).stdout
    assert "Stored per unlabelled image, 60 in all" in shown
    assert "Stored per labelled image of later stages, 10 in all: the same." in shown
    assert re.search(r"8\s+seven\s+2\s+labelled\s+5\n", shown)


def test_the_taught_run_is_used_like_any_other(
    inlay: Inlay, taught: tuple[Path, CompletedProcess[str]], five: Path, pictures: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(taught[0], tmp_path / "run.inlay"))
    predicted = inlay("predict", run, five / "seven")
    assert predicted.returncode == 0 and predicted.stdout.count("\n") == 5
    exported = inlay("export", run, "--weights", tmp_path / "weights")
    assert exported.returncode == 0, exported.stderr
    scored = inlay("evaluate", run, pictures / "test", "--match", pictures / "new")
    assert scored.returncode == 0 and "matched_on train" in scored.stdout
    assert inlay("rollback", run, "--to", 1).returncode == 0
    assert len(library.load(run, device="cpu").classes) == 7


def test_known_classes_are_refused(refused: Callable[..., str], fitted: Path, pictures: Path) -> None:
    said = refused(fitted, "learn", fitted, pictures / "base")
    assert said.startswith("learn is for new classes, and this run has a class 'digit 0' already;")


def test_images_without_labels_are_refused(refused: Callable[..., str], fitted: Path, pictures: Path) -> None:
    said = refused(fitted, "learn", fitted, pictures / "flat")
    assert said == "learn needs labels; give a folder with one sub-folder per class."


def test_a_rehearsal_names_the_kind_of_stage(inlay: Inlay, fitted: Path, five: Path) -> None:
    said = inlay("learn", fitted, five, "--dry-run")
    assert said.returncode == 0, said.stderr
    assert re.search(r"kind\s+labelled", said.stdout) and len(library.load(fitted, device="cpu").stages) == 1


def test_the_page_runs_from_top_to_bottom(
    inlay: Inlay,
    fitted: Path,
    five: Path,
    pictures: Path,
    quick: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    sources = {"labelled": pictures / "base", "two-more": five, "october": pictures / "flat", "test": pictures / "test"}
    for name, source in sources.items():
        shutil.copytree(source, tmp_path / "photos" / name)
    fitted.rename("shop.inlay")
    page = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^inlay (.+)$", page, flags=re.MULTILINE)
    assert commands.pop(0) == "fit photos/labelled --out shop.inlay"
    for command in commands:
        said = inlay(*command.split(), *(("--backbone", "resnet8", *quick) if command.startswith("fit") else ()))
        assert said.returncode == 0, said.stderr
    kept = library.load("kept.inlay", device="cpu").kept_beside
    assert kept is not None and kept[1].class_count == 6
    [block] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {"inlay": library}
    exec(compile(block, "docs/labelled.md", "exec"), names)
    assert [record.kind for record in names["learner"].stages] == ["base", "labelled"]
    assert names["learner"].classes.names[-2:] == ("eight", "seven")
