import shutil
from pathlib import Path

import pytest
from PIL import Image

from inlay.data import load, splits
from inlay.errors import InlayError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "wnids.txt").write_text("n03\nn01\nn02\n")
    (tmp_path / "words.txt").write_text("n01\tgoldfish, Carassius auratus\n")
    for number, wnid in enumerate(("n01", "n02", "n03")):
        folder = tmp_path / "train" / wnid / "images"
        folder.mkdir(parents=True)
        (folder.parent / f"{wnid}_boxes.txt").write_text("")
        for copy in range(2):
            Image.new("RGB", (64, 64), (10 * number + copy,) * 3).save(folder / f"{wnid}_{copy}.JPEG", quality=100)
    (tmp_path / "val" / "images").mkdir(parents=True)
    lines = []
    for number, wnid in enumerate(("n02", "n01", "n02")):
        Image.new("L", (64, 64), 100 + number).save(tmp_path / "val" / "images" / f"val_{number}.JPEG", quality=100)
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (tmp_path / "val" / "val_annotations.txt").write_text("".join(lines))
    (tmp_path / "test" / "images").mkdir(parents=True)
    return tmp_path


def test_train(root: Path) -> None:
    images = load(root)
    assert images.class_names == ("n01", "n02", "n03")
    assert images.labels is not None and images.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert images.images[:, 0, 0, 0].tolist() == [0, 1, 10, 11, 20, 21]
    assert images.images.shape == (6, 3, 64, 64)
    assert splits(root) == ("train", "test")


def test_val_is_the_test_split(root: Path) -> None:
    images = load(root, split="test")
    assert images.class_names == ("n01", "n02", "n03")
    assert images.labels is not None and images.labels.tolist() == [1, 0, 1]
    assert images.images[:, 2, 5, 5].tolist() == [100, 101, 102]


def test_missing_parts_are_named(root: Path) -> None:
    (root / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(InlayError, match=r"Line 2 of '.*val_annotations\.txt' names a missing image"):
        load(root, split="test")
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn09\n")
    with pytest.raises(InlayError, match=r"Line 1 .* or an unknown class"):
        load(root, split="test")
    shutil.rmtree(root / "val" / "images")
    with pytest.raises(InlayError, match=r"folder '.*val/images' is missing; restore the original layout"):
        load(root, split="test")
    (root / "val" / "val_annotations.txt").unlink()
    with pytest.raises(InlayError, match=r"val_annotations.txt' is missing"):
        load(root, split="test")
    for file in (root / "train" / "n02" / "images").iterdir():
        file.unlink()
    with pytest.raises(InlayError, match=r"class folder '.*n02/images' is missing or holds no images"):
        load(root)
    (root / "wnids.txt").write_text("")
    with pytest.raises(InlayError, match="names no classes"):
        load(root)


@pytest.mark.parametrize("file", ["wnids.txt", "val/val_annotations.txt"])
def test_text_that_is_not_utf_8(root: Path, file: str) -> None:
    (root / file).write_bytes(b"n01\xff\n")
    with pytest.raises(InlayError, match=rf"{Path(file).name}' is not UTF-8 text; download the data set again"):
        load(root, split="test")
