import csv
import json
from collections import Counter
from pathlib import Path

import pytest
from benchmarks import folder_walk

from inlay.data import ImageSet, load
from tiny_digits import digits
from walk.guide import finished_in

NAMES = ["0", "1", "2", "3", "4", "5"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> folder_walk.Folders:
    train, test = digits(NAMES, last=40), digits(NAMES, 60, 70)
    return folder_walk.write_folders(train, test, (3, 2, 1), 1, tmp_path_factory.mktemp("folders"))


def test_base_classes_are_labelled_and_a_tenth_of_them_lies_in_the_piles(folders: folder_walk.Folders) -> None:
    base = folders.classes[0]
    labelled = load(folders.root / "labelled", cache=False)
    assert sorted(labelled.class_names) == sorted(base) and len(labelled) == 3 * 36
    for pile, new in enumerate(folders.classes[1:], start=1):
        kinds = Counter(name for path, name in folders.truth.items() if path.startswith(f"pile-{pile}/"))
        assert kinds == Counter({**dict.fromkeys(new, 40), **dict.fromkeys(base, 2)})
    assert sorted(name for names in folders.classes for name in names) == NAMES


def test_files_show_the_images_of_their_classes(folders: folder_walk.Folders) -> None:
    images = {name: _pixels(digits([name], last=70)) for name in NAMES}
    for path, name in list(folders.truth.items())[::9]:
        [pixels] = load([folders.root / path], cache=False).images[:, :1]
        assert pixels.numpy().tobytes() in images[name]
    everything = {file.read_bytes() for part in ("pile-1", "pile-2") for file in (folders.root / part).iterdir()}
    assert not any(file.read_bytes() in everything for file in (folders.root / "labelled").rglob("*.png"))


def _pixels(images: ImageSet) -> set[bytes]:
    return {image.numpy().tobytes() for image in images.images}


def test_scores_are_matched_on_the_piles() -> None:
    truth = {
        "pile-1/a": "x",
        "pile-1/b": "y",
        "pile-1/c": "y",
        "test/a": "x",
        "test/b": "y",
        "test/c": "o",
        "test/d": "z",
    }
    folders = folder_walk.Folders(Path(), (("o",), ("x", "y"), ("z",)), truth)
    predicted = dict(zip(truth, ["new-1.2", "new-1.1", "o", "new-1.2", "new-1.2", "o", "o"], strict=True))
    # x is new-1.2 and y new-1.1 on the pile; z is not yet to be known.
    assert folder_walk.scored(folders, predicted, 1) == {"old": 1.0, "new": 0.5, "all": pytest.approx(2 / 3)}
    assert folder_walk.scored(folders, predicted, 2)["new"] == pytest.approx(1 / 3)


def test_the_walk_is_taken_and_written_down(
    folders: folder_walk.Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = digits(NAMES, last=80), digits(NAMES, 80, 100)
    monkeypatch.setattr(folder_walk, "demo_digits", lambda: (train, test))
    monkeypatch.setattr(folder_walk, "CUTS", {"demo": (4, 1, 1)})
    # The same command line, without a start of Python for each.
    monkeypatch.setattr(folder_walk, "run_command", finished_in)
    fit = "--backbone resnet8 --no-self-test --held-out 0.25 --set base.training.epochs=8 --set training.epochs=2"
    words = ["--data-set", "demo", "--seed", "2", "--device", "cpu", "--work", str(tmp_path / "work")]
    folder_walk.main([*words, "--out", str(tmp_path), "--fit", fit])
    record = json.loads((tmp_path / "walk-demo.json").read_text())
    assert [step["command"].split()[1] for step in record["steps"]][:3] == ["doctor", "fit", "discover"]
    assert record["images"] == {"labelled": 4 * 72, "pile-1": 96, "pile-2": 96, "test": 120}
    for stage in record["stages"]:
        assert stage["known"] + stage["new"] + stage["neither"] == stage["pile"] == 96
        assert stage["low"] <= stage["estimate"] <= stage["high"] and 0 <= stage["scores"]["all"] <= 1
    with (tmp_path / "work" / "test.csv").open(newline="", encoding="utf-8") as rows:
        assert len(list(csv.DictReader(rows))) == 120
    assert (tmp_path / "work" / "shop.onnx").exists()
