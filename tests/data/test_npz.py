from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inlay.data import load, splits
from inlay.errors import InlayError

IMAGES = np.arange(3 * 6 * 5, dtype=np.uint8).reshape(3, 6, 5)


def test_images_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "digits.npz", images=IMAGES)
    images = load(tmp_path / "digits.npz")
    assert images.labels is None
    assert images.names == ("digits.npz#0", "digits.npz#1", "digits.npz#2")
    assert images.channels == 1
    np.testing.assert_array_equal(images.images[:, 0].numpy(), IMAGES)
    assert splits(tmp_path / "digits.npz") == ()


def test_labels_and_class_names(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", images=IMAGES, labels=[1, 0, 1], class_names=["x", "y", "z"])
    images = load(tmp_path / "a.npz")
    assert images.class_names == ("x", "y", "z")
    assert images.labels is not None and images.labels.tolist() == [1, 0, 1]
    np.savez(tmp_path / "b.npz", images=IMAGES / 255, labels=["q", "p", "q"])
    images = load(tmp_path / "b.npz", channels=3)
    assert images.class_names == ("p", "q")
    np.testing.assert_array_equal(images.images[:, 2].numpy(), IMAGES)


def test_splits(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, train_images=IMAGES, train_labels=[0, 1, 2], test_images=IMAGES[:1], test_labels=[2])
    assert splits(file) == ("train", "test")
    train, test = load(file), load(file, split="test")
    assert (len(train), train.class_names) == (3, ("0", "1", "2"))
    assert (len(test), test.class_names) == (1, ("2",))
    np.savez(file, test_images=IMAGES)
    assert splits(file) == ("test",)
    with pytest.raises(InlayError, match="has no train images but test"):
        load(file)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"pictures": IMAGES}, "has no array 'images' but pictures; save it with np.savez"),
        ({"images": IMAGES.astype(np.int32)}, r"images of a\.npz are of type int32"),
        ({"images": IMAGES[0]}, r"images of a\.npz have shape \[6, 5\]"),
        ({"images": IMAGES, "labels": [0, 1]}, r"3 images but 2 labels in a\.npz"),
        ({"images": IMAGES, "labels": [0, 1, 2], "class_names": "abc"}, r"class_names of '.*a\.npz' have shape \[\]"),
        ({"images": IMAGES, "labels": [0, 0, 0], "class_names": [["a", "b"]]}, r"have shape \[1, 2\]; save them as"),
        ({"images": IMAGES[:0]}, "holds no images"),
        ({"images": np.array([None])}, "cannot be read as arrays .* without Python objects"),
    ],
)
def test_bad_archives(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InlayError, match=sentence):
        load(tmp_path / "a.npz")


def test_damaged_archives(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "cut.npz", images=IMAGES)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:80])
    np.savez(tmp_path / "flipped.npz", images=np.zeros((9, 9, 9), dtype=np.uint8))
    content = bytearray((tmp_path / "flipped.npz").read_bytes())
    content[400] ^= 0xFF
    (tmp_path / "flipped.npz").write_bytes(content)
    for name in ("text", "cut", "flipped"):
        with pytest.raises(InlayError, match="cannot be read as arrays"):
            load(tmp_path / f"{name}.npz")
