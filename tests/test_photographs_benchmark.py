import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import photographs
from benchmarks.own_images_triage import photo_crops
from benchmarks.photographs import Case, drawn
from PIL import Image

from inlay.data import ImageSet, load

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "own-images"
# What class k does to the colours of a photograph, so that classes can be told apart.
CHANNELS = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 0, 0), (2, 1, 0))
WNIDS = tuple(f"n{number:08d}" for number in range(len(CHANNELS)))
TRAIN_EACH, TEST_EACH = 10, 4
FILE = "photographs-tiny.json"


@pytest.fixture(scope="module", autouse=True)
def same_commit_whatever_changes_meanwhile() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMMIT", "abc")
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Crops of two photographs in the folders of Tiny-ImageNet."""
    root = tmp_path_factory.mktemp("data")
    folder = root / "tiny-imagenet-200"
    (folder / "val" / "images").mkdir(parents=True)
    lines = []
    for number, (wnid, channels) in enumerate(zip(WNIDS, CHANNELS, strict=True)):
        crops = photo_crops(TRAIN_EACH + TEST_EACH, (3, 64, 64), seed=number)[:, list(channels)]
        (folder / "train" / wnid / "images").mkdir(parents=True)
        for index, crop in enumerate(crops):
            name = f"{wnid}_{index}.JPEG"
            place = folder / "train" / wnid / "images" if index < TRAIN_EACH else folder / "val" / "images"
            Image.fromarray(crop.permute(1, 2, 0).numpy()).save(place / name)
            lines += [] if index < TRAIN_EACH else [f"{name}\t{wnid}\t0\t0\t63\t63\n"]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines), encoding="utf-8")
    (folder / "wnids.txt").write_text("\n".join(WNIDS), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def images(root: Path) -> tuple[ImageSet, ImageSet]:
    place = root / "tiny-imagenet-200"
    return load(place, size=64), load(place, split="test", size=64)


def _words(root: Path, out: Path, *more: str) -> list[str]:
    words = ["--data", str(root), "--out", str(out), "--seeds", "0", "--cases", "2,8,2,10", "3,6,2,9"]
    quick = ["--set", "training.epochs=1", "--set", "classifier.refit_per_class=30"]
    return [*words, "--name", "tiny", *quick, *more]


def _measured(words: list[str], out: Path) -> dict[str, Any]:
    photographs.main(words)
    record: dict[str, Any] = json.loads((out / FILE).read_text(encoding="utf-8"))
    return record


@pytest.fixture(scope="module")
def folder(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two cases were measured."""
    out = tmp_path_factory.mktemp("out")
    photographs.main(_words(root, out))
    return out


@pytest.fixture(scope="module")
def record(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return record


def test_a_record_says_how_it_was_made(record: dict[str, Any]) -> None:
    assert record["backbone"] == "efficientnet-lite2-imagenet" and record["side"] == 192
    assert record["commit"] == "abc"
    assert record["command"] == (
        "python -m benchmarks.photographs --data ROOT --seeds 0 --cases 2,8,2,10 3,6,2,9 "
        "--set training.epochs=1 --set classifier.refit_per_class=30 --name tiny"
    )
    assert record["settings"]["training.epochs"] == "1" and record["settings"]["base.training.epochs"] == 0


def test_each_case_is_measured(record: dict[str, Any]) -> None:
    (run,) = record["runs"]
    assert run["seed"] == 0
    assert [[row[key] for key in Case._fields] for row in run["cases"]] == [[2, 8, 2, 10], [3, 6, 2, 9]]
    for row in run["cases"]:
        scores, known = row["scores"], row["known"]
        assert row["matched_on"] == "train" and row["base"] > 1 / known
        assert scores["all"] == pytest.approx((known * scores["old"] + 2 * scores["new"]) / (known + 2))
        assert scores["new_head"] >= scores["new"] and scores["old_head"] >= scores["old"]
        # A mean of 1280 features at the least, in two bytes each.
        assert row["bytes_per_class"] > 2 * 1280


def test_what_was_measured_is_not_measured_again(root: Path, folder: Path, record: dict[str, Any]) -> None:
    # Its times would be others.
    assert _measured(_words(root, folder), folder)["runs"] == record["runs"]


def test_other_settings_are_measured_anew(root: Path, tmp_path: Path, record: dict[str, Any]) -> None:
    settings = {**record["settings"], "classifier.refit_per_class": "40"}
    before = {**record, "cases": [[2, 8, 2, 10]], "settings": settings}
    (tmp_path / FILE).write_text(json.dumps(before), encoding="utf-8")
    after = _measured([*_words(root, tmp_path), "--cases", "2,8,2,10"], tmp_path)
    assert after["settings"] == record["settings"] and len(after["runs"][0]["cases"]) == 1
    assert after["runs"][0]["cases"][0]["seconds"] != record["runs"][0]["cases"][0]["seconds"]
    # What is not a matter of time is the same, as the seed is.
    assert after["runs"][0]["cases"][0]["scores"] == record["runs"][0]["cases"][0]["scores"]


def test_another_network_is_measured_as_it_is(root: Path, tmp_path: Path) -> None:
    name = "efficientnet-lite0-imagenet"
    words = ["--cases", "2,8,2,10", "--backbone", name, "--size", "64"]
    record = _measured([*_words(root, tmp_path), *words], tmp_path)
    assert (record["backbone"], record["side"]) == (name, 64)
    assert f"--backbone {name} --size 64" in record["command"]
    assert record["settings"]["branch.gate"] == "frozen" and len(record["runs"]) == 1


def test_classes_and_images_are_drawn_by_the_seed(images: tuple[ImageSet, ImageSet]) -> None:
    train, test = images
    stages = drawn(train, test, Case(2, 8, 2, 6), seed=1)
    assert (len(stages.base), len(stages.unlabelled(1)), len(stages.test(1))) == (2 * 8, 2 * 6, 4 * TEST_EACH)
    assert stages.base.labels is not None and torch.bincount(stages.base.labels).tolist() == [8, 8]
    assert all(Path(name).name.startswith(stages.class_names(1)) for name in stages.labelled(1).names)
    same, other = (drawn(train, test, Case(2, 8, 2, 6), seed) for seed in (1, 2))
    assert stages.base.names == same.base.names != other.base.names
    # More known classes are the same ones and others.
    assert drawn(train, test, Case(3, 8, 2, 6), seed=1).class_names(0)[:2] == stages.class_names(0)


def test_what_cannot_be_measured_is_told(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="has 10 images, not 11"):
        photographs.main([*_words(root, tmp_path), "--cases", "2,8,2,11"])
    with pytest.raises(SystemExit, match=r"replay\.nothing"):
        photographs.main(_words(root, tmp_path, "--set", "replay.nothing=1"))
    with pytest.raises(SystemExit, match="tinyimagenet is not in"):
        photographs.main(_words(tmp_path, tmp_path))
    for case in ("2,8,2", "2,8,2,x", "2,8,,2,9", "2,8,0,9"):
        with pytest.raises(SystemExit):
            photographs.main([*_words(root, tmp_path), "--cases", case])
        assert "four numbers" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_files_in_the_repository_hold_every_seed_and_case() -> None:
    files = sorted(RESULTS.glob("photographs-*.json"))
    assert files
    for file in files:
        record = json.loads(file.read_text(encoding="utf-8"))
        assert file.stem == f"photographs-{record['name']}"
        assert [run["seed"] for run in record["runs"]] == record["seeds"] == [0, 1, 2, 3, 4]
        for run in record["runs"]:
            assert [[row[key] for key in Case._fields] for row in run["cases"]] == record["cases"]
