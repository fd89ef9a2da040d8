"""CIFAR-10 and CIFAR-100 as their authors publish them for Python."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inlay.data.images import ImageSet
from inlay.data.listing import Reader, Split
from inlay.data.pickles import PickledArray, read_pickle
from inlay.errors import InlayError

__all__ = ["READER"]


@dataclass(frozen=True)
class _Edition:
    folder: str
    files: dict[Split, tuple[str, ...]]
    meta: str
    labels: str
    class_names: str


_EDITIONS = (
    _Edition(
        "cifar-10-batches-py",
        {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
        "batches.meta",
        "labels",
        "label_names",
    ),
    _Edition(
        "cifar-100-python",
        {"train": ("train",), "test": ("test",)},
        "meta",
        "fine_labels",
        "fine_label_names",
    ),
)


def _found(path: Path) -> list[tuple[Path, _Edition]]:
    """The editions in a folder or directly below it."""
    places = ((folder, edition) for edition in _EDITIONS for folder in (path, path / edition.folder))
    return [
        (folder, edition)
        for folder, edition in places
        if (folder / edition.meta).is_file() and (folder / edition.files["test"][0]).is_file()
    ]


def _read(path: Path, split: Split) -> ImageSet:
    found = _found(path)
    if len(found) > 1:
        raise InlayError(f"'{path}' holds more than one CIFAR; name one of its folders, such as '{found[0][0]}'.")
    folder, edition = found[0]
    meta = _unpickle(folder / edition.meta)
    names = _entry(meta, edition.class_names, list, folder / edition.meta)
    if not all(isinstance(name, str | bytes) for name in names):
        raise _damaged(folder / edition.meta, f"its '{edition.class_names}' are not all text")
    class_names = tuple(_text(name) for name in names)
    parts = [_read_batch(folder / name, edition.labels, class_names) for name in edition.files[split]]
    labels = [part.labels for part in parts if part.labels is not None]
    return ImageSet(
        torch.cat([part.images for part in parts]),
        tuple(name for part in parts for name in part.names),
        torch.cat(labels),
        class_names,
    )


def _read_batch(file: Path, label_key: str, class_names: tuple[str, ...]) -> ImageSet:
    batch = _unpickle(file)
    data = _entry(batch, "data", PickledArray, file).values
    if data.ndim != 2 or data.shape[1] != 3 * 32 * 32:
        raise _damaged(file, f"its data have shape {list(data.shape)}")
    labels = _entry(batch, label_key, list, file)
    return ImageSet.from_arrays(data.reshape(-1, 3, 32, 32), labels, class_names, origin=file.name)


def _entry(content: dict[str, Any], key: str, kind: type, file: Path) -> Any:
    if not isinstance(content.get(key), kind):
        raise _damaged(file, f"it has no '{key}'")
    return content[key]


def _text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value


def _damaged(file: Path, reason: str) -> InlayError:
    return InlayError(f"'{file}' is not a sound CIFAR file ({reason}); download the data set again.")


def _unpickle(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            content = read_pickle(stream)
    except (OSError, pickle.UnpicklingError) as error:
        raise _damaged(file, str(error)) from error
    if not isinstance(content, dict):
        raise _damaged(file, "it holds no dictionary")
    return {_text(key): value for key, value in content.items() if isinstance(key, str | bytes)}


def _splits(path: Path) -> tuple[Split, ...]:
    return ("train", "test")


READER = Reader(
    "cifar-10-batches-py or cifar-100-python, or the folder that holds one of them",
    lambda path: bool(_found(path)),
    _read,
    _splits,
)
