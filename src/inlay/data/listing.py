"""What a reader of some data layout hands over."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from inlay.data.images import ImageSet

__all__ = ["IMAGE_SUFFIXES", "Listing", "Reader", "Split", "image_files", "sub_folders"]

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


def image_files(folder: Path) -> list[Path]:
    """The image files directly in a folder, sorted by name; hidden files are not images."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_file() and _is_image(entry.name)]
    return [folder / name for name in sorted(names)]


def sub_folders(folder: Path) -> list[Path]:
    """The folders directly in a folder, sorted by name, without the hidden ones."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return [folder / name for name in sorted(names)]


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
