import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from PIL import Image

import inlay as library

Inlay = Callable[..., CompletedProcess[str]]
Refused = Callable[..., str]


@pytest.fixture
def some_new(pictures: Path, tmp_path: Path) -> Path:
    """A few unlabelled images that a test may damage."""
    folder = tmp_path / "some"
    folder.mkdir()
    for image in sorted((pictures / "flat").iterdir())[::3]:
        shutil.copy(image, folder)
    return folder


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _corrupt(file: Path) -> None:
    file.write_bytes(b"this is no image")


@pytest.mark.parametrize("command", ["fit", "discover", "predict", "evaluate"])
def test_missing_folder(refused: Refused, fitted: Path, quick: tuple[str, ...], tmp_path: Path, command: str) -> None:
    missing = tmp_path / "missing"
    arguments: dict[str, tuple[object, ...]] = {
        "fit": (missing, "--out", tmp_path / "other.inlay", "--backbone", "resnet8", *quick),
        "discover": (fitted, missing, "--classes", 3),
        "predict": (fitted, missing),
        "evaluate": (fitted, missing),
    }
    assert f"There is no file or folder '{missing}'" in refused(fitted, command, *arguments[command])


def test_fit_goes_on_after_a_wrong_path_was_put_right(
    inlay: Inlay, pictures: Path, quick: tuple[str, ...], tmp_path: Path
) -> None:
    options = ("--out", tmp_path / "run.inlay", "--backbone", "resnet8", *quick)
    assert inlay("fit", tmp_path / "missing", *options).returncode == 2
    assert inlay("fit", pictures / "base", *options).returncode == 0


def test_empty_class_folder(refused: Refused, pictures: Path, quick: tuple[str, ...], tmp_path: Path) -> None:
    data = Path(shutil.copytree(pictures / "base", tmp_path / "base"))
    (data / "nothing").mkdir()
    sentence = refused(data, "fit", data, "--out", tmp_path / "run.inlay", "--backbone", "resnet8", *quick)
    assert f"The class folder '{data / 'nothing'}' holds no images" in sentence


def test_fit_without_labels(refused: Refused, pictures: Path, quick: tuple[str, ...], tmp_path: Path) -> None:
    data = pictures / "flat"
    sentence = refused(data, "fit", data, "--out", tmp_path / "run.inlay", "--backbone", "resnet8", *quick)
    assert sentence == "fit needs labels; give a folder with one sub-folder per class."


def test_evaluate_without_labels(refused: Refused, fitted: Path, pictures: Path) -> None:
    assert "no labels" in refused(fitted, "evaluate", fitted, pictures / "flat")


@pytest.mark.parametrize("damage", [_corrupt, _truncate])
def test_bad_image_is_named(refused: Refused, fitted: Path, some_new: Path, damage: Callable[[Path], None]) -> None:
    bad = sorted(some_new.iterdir())[1]
    damage(bad)
    sentence = refused(fitted, "discover", fitted, some_new, "--classes", 3)
    assert f"'{bad}' cannot be read as an image" in sentence
    assert "--skip-bad" in sentence


def test_fit_names_a_bad_image_and_goes_on_without_it(
    inlay: Inlay, refused: Refused, pictures: Path, quick: tuple[str, ...], tmp_path: Path
) -> None:
    data, run = Path(shutil.copytree(pictures / "base", tmp_path / "base")), tmp_path / "run.inlay"
    bad = sorted((data / "digit 2").iterdir())[0]
    _truncate(bad)
    arguments = ("fit", data, "--out", run, "--backbone", "resnet8", *quick)
    assert str(bad) in refused(data, *arguments)
    said = inlay(*arguments, "--skip-bad")
    assert said.returncode == 0
    assert f"Left out 1 unreadable image, such as {bad}.\n" in said.stdout
    assert [entry.size for entry in library.load(run).classes] == [20, 20, 19, 20]


def test_discover_skips_bad_images_and_says_so(inlay: Inlay, fitted: Path, some_new: Path) -> None:
    first, second, *rest = sorted(some_new.iterdir())
    _truncate(first)
    _corrupt(second)
    said = inlay("discover", fitted, some_new, "--classes", 3, "--skip-bad")
    assert said.returncode == 0
    assert said.stdout.count(f"Left out 2 unreadable images, such as {first}.\n") == 1
    assert library.load(fitted).stages[1].images == len(rest)


def test_predict_skips_bad_images_and_says_so_beside_its_table(inlay: Inlay, fitted: Path, some_new: Path) -> None:
    first, *rest = sorted(some_new.iterdir())
    _corrupt(first)
    said = inlay("predict", fitted, some_new, "--skip-bad")
    assert said.returncode == 0
    assert [line.split("\t")[0] for line in said.stdout.splitlines()] == [str(file) for file in rest]
    assert said.stderr == f"Left out 1 unreadable image, such as {first}.\n"


def test_images_of_every_kind_are_accepted(
    inlay: Inlay, pictures: Path, quick: tuple[str, ...], tmp_path: Path
) -> None:
    """Grey, colour, CMYK, 16-bit, transparent and palette images, of different sizes, side by side."""
    data = tmp_path / "kinds"
    for number, source in enumerate(sorted((pictures / "base").rglob("*.png"))):
        folder = data / source.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        grey = Image.open(source).convert("L").resize((8 + number % 3, 8))
        deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
        clear = grey.convert("RGBA")
        clear.putalpha(grey)
        kinds = [
            (grey, "png"),
            (grey.convert("RGB"), "jpg"),
            (grey.convert("CMYK"), "jpg"),
            (deep, "png"),
            (clear, "png"),
            (grey.convert("P"), "gif"),
        ]
        image, suffix = kinds[number % len(kinds)]
        image.save(folder / f"{number}.{suffix}")
    run = tmp_path / "run.inlay"
    fitted = inlay("fit", data, "--out", run, "--backbone", "resnet8", *quick)
    predicted = inlay("predict", run, data)
    assert (fitted.returncode, fitted.stderr) == (0, "")
    assert (predicted.returncode, predicted.stderr) == (0, "")
    assert len(predicted.stdout.splitlines()) == 80


def test_no_unlabelled_image(refused: Refused, fitted: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert f"'{empty}' holds no images" in refused(fitted, "discover", fitted, empty, "--classes", 3)


@pytest.mark.parametrize("classes", [1, 3])
def test_one_unlabelled_image(refused: Refused, fitted: Path, some_new: Path, classes: int) -> None:
    for image in sorted(some_new.iterdir())[1:]:
        image.unlink()
    assert "got 1" in refused(fitted, "discover", fitted, some_new, "--classes", classes)


@pytest.mark.parametrize("classes", [20, 21, 1000])
def test_more_classes_than_images(refused: Refused, fitted: Path, some_new: Path, classes: int) -> None:
    sentence = refused(fitted, "discover", fitted, some_new, "--classes", classes)
    assert f"Finding {classes} new classes needs more than {classes} images; got 20" in sentence


@pytest.mark.parametrize("classes", [0, -1])
def test_no_classes(refused: Refused, fitted: Path, some_new: Path, classes: int) -> None:
    sentence = refused(fitted, "discover", fitted, some_new, "--classes", classes)
    assert sentence == f"The number of new classes must be at least 1; got {classes}."


def test_list_with_a_missing_file(refused: Refused, fitted: Path, some_new: Path) -> None:
    listing = some_new / "list.txt"
    names = [file.name for file in sorted(some_new.glob("*.png"))]
    listing.write_text("\n".join([*names, "missing.png"]) + "\n")
    sentence = refused(fitted, "discover", fitted, listing, "--classes", 3)
    assert f"Line {len(names) + 1} of '{listing}' names 'missing.png', which is no file" in sentence


def test_list_of_images(inlay: Inlay, fitted: Path, some_new: Path) -> None:
    listing = some_new / "list.txt"
    names = [file.name for file in sorted(some_new.glob("*.png"))]
    listing.write_text("\n".join(names) + "\n")
    said = inlay("predict", fitted, listing)
    assert [Path(line.split("\t")[0]).name for line in said.stdout.splitlines()] == names


def test_missing_predictions(refused: Refused, tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path, "score", tmp_path / "missing.csv")


def test_predictions_that_are_none(refused: Refused, tmp_path: Path) -> None:
    file = tmp_path / "predictions.csv"
    file.write_text("split,stage,truth,prediction\ntest,0,a,zero\n")
    sentence = refused(tmp_path, "score", file)
    assert sentence == f"{file}, line 2: prediction must be a whole number from 0, not 'zero'."


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        (
            "--class-names",
            "a,,b",
            "Write --class-names as names with commas between them, such as cat,dog, not 'a,,b'.",
        ),
        ("--class-names", "b", "line 2: truth must be one of the given class names, not 'a'."),
        (
            "--cluster-counts",
            "3,x",
            "Write --cluster-counts as numbers with commas between them, such as 3,3, not '3,x'.",
        ),
        ("--cluster-counts", "3", "has 0 of them."),
    ],
)
def test_bad_order_of_outputs(refused: Refused, tmp_path: Path, option: str, value: str, sentence: str) -> None:
    file = tmp_path / "predictions.csv"
    file.write_text("split,stage,truth,prediction\ntest,0,a,0\n")
    assert refused(tmp_path, "score", file, option, value).endswith(sentence)
