"""What a reader of some data layout hands over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    # Image sets order their classes by the rule below, so at run time they import this module.
    from inlay.data.images import ImageSet

__all__ = ["IMAGE_SUFFIXES", "Listing", "Reader", "Split", "class_order", "image_files", "sub_folders"]

Split: TypeAlias = Literal["train", "test"]

# One line per family: photographs, lossless files, the Netpbm family.
IMAGE_SUFFIXES = frozenset(
    {
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".webp", ".avif"),
        *(".png", ".bmp", ".gif", ".tif", ".tiff", ".tga"),
        *(".ppm", ".pgm", ".pbm", ".pnm"),
    }
)


@dataclass(frozen=True)
class Listing:
    """Image files to decode.

    Attributes:
        files: The files in order.
        labels: One index into `class_names` per file, or None.
        class_names: The names of the classes in order; empty without labels.
    """

    files: tuple[Path, ...]
    labels: tuple[int, ...] | None = None
    class_names: tuple[str, ...] = ()


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
