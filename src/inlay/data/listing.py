"""What a reader of some data layout hands over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from inlay.errors import InlayError

if TYPE_CHECKING:
    # Image sets order their classes by the rule below, so at run time they import this module.
    from inlay.data.images import ImageSet

__all__ = [
    "IMAGE_SUFFIXES",
    "ImageFile",
    "Listing",
    "Member",
    "Reader",
    "Split",
    "class_order",
    "image_files",
    "sub_folders",
]

Split: TypeAlias = Literal["train", "test"]

# One line per family: photographs, lossless files, the Netpbm family.
IMAGE_SUFFIXES = frozenset(
    {
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".webp", ".avif"),
        *(".png", ".bmp", ".gif", ".tif", ".tiff", ".tga"),
        *(".ppm", ".pgm", ".pbm", ".pnm"),
    }
)


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside an archive that is not compressed, so that it can be read without what comes before it.

    Attributes:
        archive: The file that it lies in.
        name: Its name there.
        offset: Position of its first byte.
        length: Number of its bytes.
    """

    archive: Path
    name: str
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.archive}#{self.name}"

    def content(self) -> bytes:
        """Read its bytes; threads may do so at the same time.

        Raises:
            OSError: The archive cannot be read.
        """
        with self.archive.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), self.length, self.offset)


ImageFile: TypeAlias = Path | Member


@dataclass(frozen=True)
class Listing:
    """Image files to decode.

    Attributes:
        files: The files in order, each on its own or in an archive.
        labels: One index into `class_names` per file, or None.
        class_names: The names of the classes in order; empty without labels.
    """

    files: tuple[ImageFile, ...]
    labels: tuple[int, ...] | None = None
    class_names: tuple[str, ...] = ()

    def kept(self, good: npt.NDArray[np.bool_]) -> Listing:
        """The listing without its damaged files.

        Args:
            good: Which files can be read, bool [N].

        Raises:
            InlayError: Nothing is left, or nothing of a class.
        """
        if not good.any():
            raise InlayError(
                f"None of the {len(self.files)} image files can be read, such as '{self.files[0]}'; "
                "name a folder with sound images."
            )
        files = tuple(compress(self.files, good))
        if self.labels is None:
            return Listing(files)
        labels = tuple(compress(self.labels, good))
        lost = set(self.labels) - set(labels)
        if lost:
            name = self.class_names[min(lost)]
            raise InlayError(f"Every image of the class '{name}' is damaged; replace them or remove the class.")
        return Listing(files, labels, self.class_names)


def _no_splits(path: Path) -> tuple[Split, ...]:
    return ()


@dataclass(frozen=True)
class Reader:
    """One layout of data on disk.

    Attributes:
        layout: The layout in words, for the message that lists what is understood.
        recognises: Whether a path that exists has this layout.
        read: Lists the image files of a path and a split, or reads its images where they are not image files.
        splits: The splits that a path holds; empty where there is only one set of images.
    """

    layout: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, Split], Listing | ImageSet]
    splits: Callable[[Path], tuple[Split, ...]] = _no_splits


def class_order(names: Iterable[str]) -> list[str]:
    """The native order of classes: as numbers if all names are whole numbers (2 before 10), else as text."""
    unordered = list(names)
    if not all(name.isascii() and name.isdigit() for name in unordered):
        return sorted(unordered)
    longest = max(map(len, unordered), default=0)
    return sorted(unordered, key=lambda name: (name.zfill(longest), name))


def image_files(folder: Path) -> list[Path]:
    """The image files directly in a folder, sorted by name; hidden files are not images."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_file() and _is_image(entry.name)]
    return [folder / name for name in sorted(names)]


def sub_folders(folder: Path) -> list[Path]:
    """The folders directly in a folder in the order of classes, without the hidden ones."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return [folder / name for name in class_order(names)]


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
