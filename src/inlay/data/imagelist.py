"""A text file that lists image files, one per line."""

from pathlib import Path

from inlay.data.listing import Listing, Reader, Split
from inlay.errors import InlayError

__all__ = ["READER"]


def _recognises(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() == ".txt"


def _read(path: Path, split: Split) -> Listing:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InlayError(f"The list '{path}' cannot be read as text ({error}); save it as UTF-8.") from error
    files = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        file = path.parent / line.strip()
        if not file.is_file():
            raise InlayError(
                f"Line {number} of '{path}' names '{line.strip()}', which is no file; "
                f"write a path relative to '{path.parent}', or remove the line."
            )
        files.append(file)
    if not files:
        raise InlayError(f"The list '{path}' names no images; write one path per line.")
    return Listing(tuple(files))


READER = Reader("a .txt list of image paths, one per line", _recognises, _read)
