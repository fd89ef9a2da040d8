"""Small images of every format, and ways to damage them."""

import io
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin, features

__all__ = ["bombs", "mutated", "tiff_that_ends_early", "whole_images"]

_WIDTH, _HEIGHT = 23, 29
_HUGE = 40_000
_NUMBERS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\x40\0", b"\0\x40\0\0", b"\0\0\0\0", b"\xff\xff", b"99999")


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format=kind, **options)
    return stream.getvalue()


def whole_images() -> dict[str, bytes]:
    """Sound image files by name, of every format and kind that Pillow can write here."""
    noise = np.random.default_rng(0)
    colour = Image.fromarray(noise.integers(0, 256, (_HEIGHT, _WIDTH, 3), dtype=np.uint8))
    deep = Image.fromarray(noise.integers(0, 65536, (_HEIGHT, _WIDTH), dtype=np.uint16))
    pages: dict[str, Any] = {"save_all": True, "append_images": [colour.rotate(90), colour.rotate(180)]}
    turned = Image.Exif()
    turned[0x0112] = 6
    text = PngImagePlugin.PngInfo()
    text.add_text("a", "b" * 99, zip=True)
    text.add_itxt("XML:com.adobe.xmp", '<x tiff:Orientation="6"/>')
    made = {
        "plain.png": _encoded(colour, "PNG"),
        "deep.png": _encoded(deep, "PNG"),
        "palette.png": _encoded(colour.quantize(16), "PNG", transparency=3),
        "clear.png": _encoded(colour.convert("RGBA"), "PNG"),
        "text.png": _encoded(colour, "PNG", pnginfo=text, icc_profile=b"x" * 99, exif=turned),
        "animated.png": _encoded(colour, "PNG", **pages),
        "plain.jpg": _encoded(colour, "JPEG"),
        "progressive.jpg": _encoded(colour, "JPEG", progressive=True),
        "turned.jpg": _encoded(colour, "JPEG", exif=turned),
        "cmyk.jpg": _encoded(colour.convert("CMYK"), "JPEG"),
        "clear.gif": _encoded(colour.quantize(16), "GIF", transparency=2),
        "animated.gif": _encoded(colour, "GIF", **pages),
        "plain.bmp": _encoded(colour, "BMP"),
        "palette.bmp": _encoded(colour.quantize(16), "BMP"),
        "plain.tif": _encoded(colour, "TIFF"),
        "pages.tif": _encoded(colour, "TIFF", **pages),
        "deep.tif": _encoded(deep, "TIFF"),
        "lzw.tif": _encoded(colour, "TIFF", compression="tiff_lzw"),
        "deflate.tif": _encoded(colour, "TIFF", compression="tiff_adobe_deflate", exif=turned),
        "fax.tif": _encoded(colour.convert("1"), "TIFF", compression="group4"),
        "plain.webp": _encoded(colour, "WEBP"),
        "animated.webp": _encoded(colour, "WEBP", **pages),
        "plain.ppm": _encoded(colour, "PPM"),
        "plain.pbm": _encoded(colour.convert("1"), "PPM"),
        "ascii.pgm": b"P2\n4 3\n255\n" + b" ".join(b"%d" % value for value in range(12)) + b"\n",
        "runs.tga": _encoded(colour, "TGA", compression="tga_rle"),
    }
    if features.check("jpg_2000"):
        made["plain.jp2"] = _encoded(colour, "JPEG2000")
    if features.check("avif"):
        made["plain.avif"] = _encoded(colour, "AVIF")
    return made


def mutated(whole: bytes, chance: random.Random) -> bytes:
    """Damage a file once in one of several ways."""
    data = bytearray(whole)
    place = chance.randrange(len(data))
    match chance.randrange(8):
        case 0:
            for _ in range(chance.randint(1, 4)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 1:
            del data[place:]
        case 2:
            data[place:place] = chance.randbytes(chance.randint(1, 20))
        case 3:
            length = chance.randint(2, len(data) // 3)
            other = chance.randrange(len(data) - length)
            data[other : other + length], data[place:] = data[place:], data[other : other + length]
        case 4:
            number = chance.choice(_NUMBERS)
            place = chance.randrange(min(60, len(data)))
            data[place : place + len(number)] = number
        case 5:
            length = min(chance.randint(1, 30), len(data) - place)
            data[place : place + length] = bytes(length)
        case 6:
            del data[place : place + chance.randint(1, 30)]
        case _:
            data[place:] = data[: len(data) - place]
    return bytes(data)


def tiff_that_ends_early() -> bytes:
    """A TIFF that declares ten times the rows that its strips have."""
    tall = struct.pack("<HHII", 257, 4, 1, 10 * _HEIGHT)
    return whole_images()["plain.tif"].replace(struct.pack("<HHII", 257, 4, 1, _HEIGHT), tall)


def bombs() -> Iterator[tuple[str, bytes]]:
    """Tiny files whose headers declare more than a thousand million pixels."""
    whole = whole_images()
    for name, old, new in (
        ("plain.bmp", struct.pack("<ii", _WIDTH, _HEIGHT), struct.pack("<ii", _HUGE, _HUGE)),
        ("clear.gif", struct.pack("<HH", _WIDTH, _HEIGHT), struct.pack("<HH", _HUGE, _HUGE)),
        ("plain.jpg", struct.pack(">HH", _HEIGHT, _WIDTH), struct.pack(">HH", _HUGE, _HUGE)),
        ("progressive.jpg", struct.pack(">HH", _HEIGHT, _WIDTH), struct.pack(">HH", _HUGE, _HUGE)),
        ("plain.ppm", b"%d %d" % (_WIDTH, _HEIGHT), b"%d %d" % (_HUGE, _HUGE)),
        ("runs.tga", struct.pack("<HH", _WIDTH, _HEIGHT), struct.pack("<HH", _HUGE, _HUGE)),
        ("plain.tif", struct.pack("<HHII", 257, 4, 1, _HEIGHT), struct.pack("<HHII", 257, 4, 1, _HUGE**2)),
    ):
        assert old in whole[name], name
        yield f"bomb-{name}", whole[name].replace(old, new, 1)
    header = b"IHDR" + struct.pack(">II", _HUGE, _HUGE) + whole["plain.png"][24:29]
    checksum = struct.pack(">I", zlib.crc32(header))
    yield "bomb-plain.png", whole["plain.png"][:12] + header + checksum + whole["plain.png"][33:]
    # Pillow's own limit is a warning up to twice of it.
    side = 10_000
    yield "bomb-warned.png", _encoded(Image.new("1", (side, side)), "PNG")
