"""Arrays in a numpy .npz archive."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from inlay.data.images import ImageSet
from inlay.data.listing import Reader, Split
from inlay.errors import InlayError

__all__ = ["READER"]

_BOTH: tuple[Split, ...] = ("train", "test")


def _recognises(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() == ".npz"


def _splits(path: Path) -> tuple[Split, ...]:
    with _opened(path) as archive:
        return _splits_among(archive.files)


def _read(path: Path, split: Split) -> ImageSet:
    with _opened(path) as archive:
        prefix = f"{split}_" if _splits_among(archive.files) else ""
        if f"{prefix}images" not in archive.files:
            raise InlayError(
                f"'{path}' has no array '{prefix}images' but {', '.join(archive.files) or 'nothing'}; "
                "save it with np.savez(path, images=..., labels=...)."
            )
        images = archive[f"{prefix}images"]
        labels = archive[f"{prefix}labels"] if f"{prefix}labels" in archive.files else None
        class_names = archive["class_names"] if "class_names" in archive.files else None
    if class_names is not None and class_names.ndim != 1:
        raise InlayError(
            f"The class_names of '{path}' have shape {list(class_names.shape)}; save them as a list of names."
        )
    return ImageSet.from_arrays(images, labels, None if class_names is None else class_names.tolist(), origin=path.name)


def _splits_among(names: list[str]) -> tuple[Split, ...]:
    return tuple(split for split in _BOTH if f"{split}_images" in names)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no archive")
        with np.load(path, allow_pickle=False) as archive:
            yield archive
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InlayError(
            f"'{path}' cannot be read as arrays ({error}); save it with np.savez, without Python objects."
        ) from error


READER = Reader(
    "an .npz file with images and labels, or train_images, train_labels, test_images and test_labels",
    _recognises,
    _read,
    _splits,
)
