"""Opening image files: their headers, and what may go wrong."""

import io
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from PIL import ExifTags, Image

from inlay.data.listing import IMAGE_SUFFIXES, ImageFile, Member
from inlay.data.pixels import Size

__all__ = ["DECODER_ERRORS", "Header", "formats", "openable", "read_header"]

DECODER_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    OverflowError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)
"""Everything that Pillow's decoders are known to raise on damaged files."""

_ON_ITS_SIDE = (5, 6, 7, 8)


@dataclass(frozen=True)
class Header:
    """What an image file says of itself.

    Attributes:
        size: Height and width as it is shown, turned by EXIF where it says so.
        format: Pillow's name of the format.
        mode: Pillow's name of the colour mode.
        turned: Whether EXIF turns or mirrors it.
    """

    size: Size
    format: str
    mode: str
    turned: bool


def read_header(file: ImageFile) -> Header | None:
    """Read what an image file says of itself; None if it cannot be opened. Call it within `decode.in_parallel`."""
    try:
        with Image.open(openable(file), formats=formats()) as image:
            turn = image.getexif().get(ExifTags.Base.Orientation, 1)
            size = image.size if turn in _ON_ITS_SIDE else (image.height, image.width)
            return Header(size, image.format or "unknown", image.mode, turn in range(2, 9))
    except DECODER_ERRORS:
        return None


@cache
def formats() -> tuple[str, ...]:
    """Pillow's names of the formats that are read, so that a renamed file cannot reach, say, Ghostscript."""
    format_of = Image.registered_extensions()
    wanted = {format_of[suffix] for suffix in IMAGE_SUFFIXES if suffix in format_of}
    return tuple(name for name in Image.ID if name in wanted)


def openable(source: str | BinaryIO | ImageFile) -> str | Path | BinaryIO:
    """What Pillow can open: the file itself, or the bytes of one inside an archive."""
    return io.BytesIO(source.content()) if isinstance(source, Member) else source
