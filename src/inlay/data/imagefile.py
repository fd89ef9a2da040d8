"""A single image file."""

from pathlib import Path

from inlay.data.listing import IMAGE_SUFFIXES, Listing, Reader, Split

__all__ = ["READER"]


def _recognises(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in IMAGE_SUFFIXES


def _read(path: Path, split: Split) -> Listing:
    return Listing((path,))


READER = Reader("a single image file", _recognises, _read)
