import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inlay.data import load, splits
from inlay.errors import InlayError


def data(seed: int, count: int = 4) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def dump(file: Path, content: object, protocol: int = 2) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps(content, protocol=protocol))


def write_cifar10(folder: Path, keys: type = str) -> None:
    def key(text: str) -> Any:
        return text.encode() if keys is bytes else text

    dump(folder / "batches.meta", {key("label_names"): [key("plane"), key("car"), key("bird")], key("n"): 4})
    for number in range(1, 6):
        content = {
            key("data"): data(number),
            key("labels"): [0, 1, 2, number % 3],
            key("batch_label"): key("b"),
        }
        dump(folder / f"data_batch_{number}", content)
    dump(folder / "test_batch", {key("data"): data(9, 2), key("labels"): [2, 0]})


def write_cifar100(folder: Path) -> None:
    dump(folder / "meta", {"fine_label_names": ["apple", "bee"], "coarse_label_names": ["thing"]})
    for name, seed in (("train", 1), ("test", 2)):
        dump(folder / name, {"data": data(seed, 2), "fine_labels": [1, 0], "coarse_labels": [0, 0]})


@pytest.mark.parametrize("keys", [str, bytes])
@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py"])
def test_cifar10(tmp_path: Path, keys: type, inside: str) -> None:
    write_cifar10(tmp_path / inside, keys)
    train = load(tmp_path)
    assert train.class_names == ("plane", "car", "bird")
    assert train.labels is not None
    assert train.labels.tolist() == [0, 1, 2, 1, 0, 1, 2, 2, 0, 1, 2, 0, 0, 1, 2, 1, 0, 1, 2, 2]
    assert (train.names[0], train.names[7]) == ("data_batch_1#0", "data_batch_2#3")
    pixels = np.concatenate([data(number) for number in range(1, 6)])
    for number, channel, row, column in ((0, 0, 0, 0), (6, 1, 2, 3), (19, 2, 31, 30)):
        assert train.images[number, channel, row, column] == pixels[number, channel * 1024 + row * 32 + column]
    test = load(tmp_path, split="test")
    assert len(test) == 2 and test.labels is not None and test.labels.tolist() == [2, 0]
    assert splits(tmp_path) == ("train", "test")


def test_cifar100_has_fine_labels(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "cifar-100-python")
    for path in (tmp_path, tmp_path / "cifar-100-python"):
        test = load(path, split="test")
        assert test.class_names == ("apple", "bee")
        assert test.labels is not None and test.labels.tolist() == [1, 0]
        np.testing.assert_array_equal(test.images.numpy(), data(2, 2).reshape(2, 3, 32, 32))


def test_python_2_pickles(tmp_path: Path) -> None:
    """Byte strings of Python 2 hold the pixels, as in the published files."""
    write_cifar100(tmp_path)
    pixels = data(7, 1)
    as_python_2 = (
        b"(dS'data'\ncnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
        b"(I1\n(I1\nI3072\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\n"
        + b"S"
        + repr(pixels.tobytes())[1:].encode()
        + b"\ntbsS'fine_labels'\n(lI1\nas."
    )
    (tmp_path / "train").write_bytes(as_python_2)
    train = load(tmp_path)
    np.testing.assert_array_equal(train.images.numpy(), pixels.reshape(1, 3, 32, 32))


def test_both_editions_side_by_side(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    write_cifar100(tmp_path / "cifar-100-python")
    with pytest.raises(InlayError, match="more than one CIFAR; name one of its folders"):
        load(tmp_path)


class _Attack:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_malicious_pickles_are_refused_unrun(tmp_path: Path, protocol: int) -> None:
    write_cifar100(tmp_path)
    dump(tmp_path / "train", {"data": _Attack(tmp_path / "broken in"), "fine_labels": [0]}, protocol)
    with pytest.raises(InlayError, match=r"it asks for .*mkdir, which no file of arrays needs"):
        load(tmp_path)
    assert not (tmp_path / "broken in").exists()


def test_class_names_that_are_not_text(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    dump(tmp_path / "meta", {"fine_label_names": ["apple", 7]})
    with pytest.raises(InlayError, match=r"meta' is not a sound CIFAR file \(its 'fine_label_names' are not all text"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([1, 2], "it holds no dictionary"),
        ({"fine_labels": [0]}, "it has no 'data'"),
        ({"data": data(0, 1)}, "it has no 'fine_labels'"),
        ({"data": data(0, 1)[:, :100], "fine_labels": [0]}, r"its data have shape \[1, 100\]"),
        ({"data": data(0, 1), "fine_labels": [5]}, "label 5 of train is beyond the 2 class names"),
        ({"data": data(0, 2), "fine_labels": [1]}, "2 images but 1 labels in train"),
    ],
)
def test_unsound_files(tmp_path: Path, content: object, sentence: str) -> None:
    write_cifar100(tmp_path)
    dump(tmp_path / "train", content)
    with pytest.raises(InlayError, match=sentence):
        load(tmp_path)


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_3").write_bytes((tmp_path / "data_batch_3").read_bytes()[:500])
    with pytest.raises(InlayError, match=r"data_batch_3' is not a sound CIFAR file .*download the data set again"):
        load(tmp_path)
    (tmp_path / "data_batch_3").unlink()
    with pytest.raises(InlayError, match="data_batch_3' is not a sound CIFAR file"):
        load(tmp_path)
