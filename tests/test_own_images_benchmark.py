import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from benchmarks import own_images, own_images_all
from benchmarks.own_images_cases import Case, prepared
from benchmarks.own_images_count import max_acc_count, silhouette_count, uneven
from benchmarks.own_images_triage import photo_crops

from tiny_digits import digits

ROOT = Path(__file__).parent.parent
NAMES = [str(digit) for digit in range(10)]


@pytest.fixture(scope="module")
def digits_as_cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ten digits in the files of CIFAR-10, enough of them to keep some out of training."""
    folder = tmp_path_factory.mktemp("data")
    parts = {"train": digits(NAMES, 0, 140), "test": digits(NAMES, 140, 170)}
    arrays: dict[str, Any] = {f"{name}_images": part.images[:, 0].numpy() for name, part in parts.items()}
    for name, part in parts.items():
        assert part.labels is not None
        arrays[f"{name}_labels"] = part.labels.numpy()
    np.savez(folder / "cifar10.npz", **arrays)
    return folder


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.mark.parametrize("part", own_images.PARTS)
def test_each_part_is_measured(
    part: str, digits_as_cifar10: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMIT", "abc")
    monkeypatch.setattr(own_images, "_NEW_CLASSES", {"cifar10": (2,)})
    words = ["--part", part, "--data-set", "cifar10", "--data", str(digits_as_cifar10), "--seeds", "0"]
    words += ["--set", "base.training.epochs=1", "--set", "training.epochs=1"]
    words += ["--device", "cpu", "--backbone", "resnet8"]
    words += ["--work", str(work), "--out", str(tmp_path)]
    own_images.main([*words, "--part", own_images.BASE])
    (base,) = (path for path in work.iterdir() if path.is_dir())
    learned = {path: path.stat().st_mtime_ns for path in base.rglob("*.safetensors")}
    assert learned and list(tmp_path.iterdir()) == []
    own_images.main(words)
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*.safetensors")} == learned
    file = tmp_path / f"{part}-cifar10-resnet8.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    assert record["commit"] == "abc" and str(tmp_path) not in record["command"]
    (run,) = record["runs"]
    assert run["seed"] == 0 and run["self_test"][0]["hidden"] == 2
    _check(part, run)
    # What was measured is not measured again.
    before = file.read_bytes()
    own_images.main(words)
    assert file.read_bytes() == before


def test_everything_is_measured_by_one_command(
    digits_as_cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMMIT", "abc")
    work, out = tmp_path / "work", tmp_path / "out"
    words = ["--data-sets", "cifar10", "--seeds", "0", "--side-by-side", "2", "--work", str(work)]
    words += ["--data", str(digits_as_cifar10), "--device", "cpu", "--backbone", "resnet8", "--no-baselines"]
    words += ["--set", "base.training.epochs=1", "--set", "training.epochs=1", "--out", str(out)]
    own_images_all.main(words)
    said = capsys.readouterr().out
    assert "base-cifar10-0: " in said and "(1 of 1)" in said and "(4 of 4)" in said
    for part in own_images.PARTS:
        record = json.loads((out / f"{part}-cifar10-resnet8.json").read_text(encoding="utf-8"))
        assert [run["seed"] for run in record["runs"]] == [0]
    with pytest.raises(SystemExit) as stopped:
        own_images_all.main([*words, "--data", str(tmp_path / "nothing")])
    assert stopped.value.code == 1 and "cifar10 is not in" in capsys.readouterr().out


def test_parts_at_the_same_time_learn_the_base_stage_once(digits_as_cifar10: Path, tmp_path: Path) -> None:
    changes = {"base.training.epochs": 1, "training.epochs": 1}

    def base_stage() -> Case:
        return prepared("cifar10", digits_as_cifar10, 0, "cpu", tmp_path / "work", changes=changes, backbone="resnet8")

    with ThreadPoolExecutor(2) as pool:
        first, second = (case.result() for case in [pool.submit(base_stage) for _ in range(2)])
    assert first.knowledge.record.seconds == second.knowledge.record.seconds
    assert first.calibration == second.calibration


def _check(part: str, run: dict[str, Any]) -> None:
    if part == "count":
        assert [(pile["sizes"], pile["truth"]) for pile in run["piles"]] == [
            ("even", 2),
            ("1:10", 2),
            ("no new class", 0),
        ]
        assert all(pile["low"] <= pile["estimate"] <= pile["high"] for pile in run["piles"])
        assert run["piles"][1]["images"] < run["piles"][0]["images"] == 280
    elif part == "triage":
        assert run["old_images"] == run["new_images"] == 75
        assert set(run["auroc"]) == {"ours", "softmax", "energy"}
        assert all(sum(shares.values()) == pytest.approx(1) for shares in run["foreign"].values())
        assert 0 <= run["stage"]["oracle"]["all"] <= 1
    elif part == "few":
        # Of 150 and n images n are a fiftieth, a twentieth, a tenth.
        assert [(pile["old_images"], pile["new_images"]) for pile in run["piles"]] == [(150, 3), (150, 8), (150, 17)]
        assert all(0 <= pile[share] <= 1 for pile in run["piles"] for share in ("new_found", "known_error"))
    else:
        assert run["truth"] == pytest.approx(run["accuracy_before"] - run["accuracy_after"])


def test_sizes_fall_to_a_tenth() -> None:
    images = uneven(digits(NAMES[:3], 0, 100), 0)
    assert images.labels is not None
    assert torch.bincount(images.labels).tolist() == [100, 32, 10]


def test_baselines_count_separated_classes() -> None:
    randomness = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(7, 16, generator=randomness))
    labels = torch.arange(7).repeat_interleave(60)
    points = centres[labels] + 0.03 * torch.randn(len(labels), 16, generator=randomness)
    old = labels < 3
    assert silhouette_count(points[~old], randomness) == 4
    assert abs(max_acc_count(points[~old], points[old], labels[old], randomness) - 4) <= 4


def test_crops_are_as_asked() -> None:
    assert photo_crops(3, (1, 14, 14), 0).shape == (3, 1, 14, 14)
    assert photo_crops(2, (3, 32, 32), 0).dtype == torch.uint8
    assert torch.equal(photo_crops(2, (3, 8, 8), 1), photo_crops(2, (3, 8, 8), 1))


@pytest.mark.parametrize("part", own_images.PARTS)
def test_the_demonstration_was_measured_with_five_seeds(part: str) -> None:
    file = ROOT / "benchmarks" / "results" / "own-images" / f"{part}-demo.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    assert [run["seed"] for run in record["runs"]] == record["seeds"] == [0, 1, 2, 3, 4]
