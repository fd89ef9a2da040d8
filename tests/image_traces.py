"""Traces of images in files that shall hold none."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["PIECE", "layouts", "pieces_of", "traces"]

PIECE = 64
# A piece of fewer values, such as plain sky, could be found in any file.
_LEAST_VALUES = 16
_HEADERS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"JFIF", b"Exif\0", b"IHDR", b"IDAT", b"GIF8", b"RIFF", b"WEBP")
# Two or three bytes are found anywhere by chance; these are long enough not to be.
_TELLING = tuple(header for header in _HEADERS if len(header) > 3)


def layouts(pixels: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    """Yield an image [H, W, C] as bytes, with its channels last and first."""
    yield pixels.tobytes()
    yield pixels.transpose(2, 0, 1).tobytes()


def pieces_of(contents: Iterable[bytes]) -> set[bytes]:
    """Return the pieces of files or images, from wherever they begin, by which these would be known again."""
    return {piece for content in contents for piece in _cut(content, 1) if len(set(piece)) >= _LEAST_VALUES}


def traces(content: bytes, pieces: set[bytes], step: int = 1) -> list[bytes]:
    """Return the headers of image formats and the pieces of images that are found in a file.

    Args:
        content: The file.
        pieces: What `pieces_of` returned.
        step: Bytes from one place that is looked at to the next; a copy of PIECE + step - 1 bytes is always found.
    """
    found = [header for header in _TELLING if header in content]
    return found + [piece for piece in _cut(content, step) if piece in pieces]


def _cut(content: bytes, step: int) -> Iterator[bytes]:
    return (content[start : start + PIECE] for start in range(0, len(content) - PIECE + 1, step))
