"""Image files turned into pixels, many at a time."""

import io
import os
import statistics
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from inlay.data.listing import IMAGE_SUFFIXES, ImageFile, Member
from inlay.data.pixels import Pixels, Size, as_size, check_channels, convert, fit, to_array
from inlay.errors import InlayError

__all__ = ["Progress", "common_size", "decode_files", "decode_image", "decoding_threads", "read_file", "visit_files"]

Progress: TypeAlias = Callable[[int, int], None]
_File: TypeAlias = str | BinaryIO | ImageFile
_Result = TypeVar("_Result")

_FILES_PER_TASK = 32
_MOST_THREADS = 16
_SMALLEST_SIDE, _LARGEST_SIDE, _SIDE_STEP = 8, 224, 8

# Everything Pillow's decoders are known to raise on damaged files.
_DECODER_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    OverflowError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


class _BadImageError(Exception):
    """An image cannot be read; the message is the reason in a few words."""


def decode_image(source: _File, size: int | Size | None = None, channels: int = 3) -> Tensor:
    """Read one image file.

    Args:
        source: A path, or a binary file open for reading.
        size: A side, or (height, width), to scale and centre-crop to; None keeps the size.
        channels: 1 for grey, 3 for RGB.

    Returns:
        uint8 [C, H, W].

    Raises:
        InlayError: The file is missing, damaged or no image.
    """
    target = as_size(size)
    check_channels(channels)
    try:
        with _bombs_are_errors():
            return torch.from_numpy(_read(source, target, channels).copy())
    except _BadImageError as error:
        name = source if isinstance(source, str | ImageFile) else getattr(source, "name", "the open file")
        raise InlayError(
            f"'{name}' cannot be read as an image ({error}); pass a sound PNG, JPEG or similar file."
        ) from error


def decode_files(
    files: Sequence[ImageFile],
    size: Size,
    channels: int,
    *,
    skip_bad: bool = False,
    on_progress: Progress | None = None,
) -> tuple[Pixels, npt.NDArray[np.bool_]]:
    """Read image files in parallel.

    Args:
        files: The files in order.
        size: Height and width to scale and centre-crop to.
        channels: 1 for grey, 3 for RGB.
        skip_bad: Leave damaged files out.
        on_progress: Called now and then with the number of files done and the number of all files.

    Returns:
        The pixels of the files that could be read, uint8 [M, C, H, W], in order; and for each file whether
        it is among them, bool [N].

    Raises:
        InlayError: A file is damaged and `skip_bad` is off; it is the first such file in order.
    """
    pixels = np.empty((len(files), channels, *size), dtype=np.uint8)

    def keep(number: int, image: Pixels) -> None:
        pixels[number] = image

    good = visit_files(files, size, channels, keep, skip_bad=skip_bad, on_progress=on_progress)
    return (pixels if good.all() else pixels[good]), good


def visit_files(
    files: Sequence[ImageFile],
    size: Size,
    channels: int,
    visit: Callable[[int, Pixels], None],
    *,
    skip_bad: bool = False,
    on_progress: Progress | None = None,
) -> npt.NDArray[np.bool_]:
    """Read image files in parallel and hand each to a function, which need not keep it.

    Args:
        files: The files.
        size: Height and width to scale and centre-crop to.
        channels: 1 for grey, 3 for RGB.
        visit: Called with the number of a file and its pixels, uint8 [C, H, W], by several threads at a time.
        skip_bad: Leave damaged files out.
        on_progress: Called now and then with the number of files done and the number of all files.

    Returns:
        For each file whether it could be read, bool [N].

    Raises:
        InlayError: A file is damaged and `skip_bad` is off; it is the first such file in order.
    """
    good = np.zeros(len(files), dtype=np.bool_)

    def decode(first: int) -> None:
        for number in range(first, min(first + _FILES_PER_TASK, len(files))):
            try:
                image = _read(files[number], size, channels)
            except _BadImageError as error:
                if not skip_bad:
                    raise _damaged(files[number], error) from error
                continue
            visit(number, image)
            good[number] = True

    def report(tasks_done: int) -> None:
        if on_progress is not None:
            on_progress(min(tasks_done * _FILES_PER_TASK, len(files)), len(files))

    _in_parallel(decode, range(0, len(files), _FILES_PER_TASK), report)
    return good


def read_file(file: ImageFile, size: Size, channels: int) -> Pixels:
    """Read one file of a set: uint8 [C, H, W].

    Args:
        file: The file.
        size: Height and width to scale and centre-crop to.
        channels: 1 for grey, 3 for RGB.

    Raises:
        InlayError: The file is missing, damaged or no image.
    """
    try:
        return _read(file, size, channels)
    except _BadImageError as error:
        raise _damaged(file, error) from error


def decoding_threads() -> int:
    """How many threads decode at a time."""
    return min(_MOST_THREADS, os.cpu_count() or 1)


def common_size(files: Sequence[ImageFile]) -> Size:
    """Choose one size for a list of image files.

    The size that all share, if its shorter side is at most 224; otherwise a square with the median of the
    shorter sides, rounded to a multiple of 8 within 8..224. Files that cannot be read have no say.
    """

    def measure(first: int) -> list[Size]:
        sizes = (_size_of(file) for file in files[first : first + _FILES_PER_TASK])
        return [size for size in sizes if size is not None]

    measured = _in_parallel(measure, range(0, len(files), _FILES_PER_TASK))
    sizes = [size for part in measured for size in part]
    if len(set(sizes)) == 1 and min(sizes[0]) <= _LARGEST_SIDE:
        return sizes[0]
    median = statistics.median([min(size) for size in sizes] or [_SMALLEST_SIDE])
    side = int(median / _SIDE_STEP + 0.5) * _SIDE_STEP
    side = min(max(side, _SMALLEST_SIDE), _LARGEST_SIDE)
    return side, side


def _in_parallel(
    work: Callable[[int], _Result], tasks: Sequence[int], report: Callable[[int], None] | None = None
) -> list[_Result]:
    # Threads are enough: Pillow lets go of the interpreter lock while it decodes and scales.
    pool = ThreadPoolExecutor(max_workers=decoding_threads())
    results: list[_Result] = []
    try:
        with _bombs_are_errors():
            for result in pool.map(work, tasks):
                results.append(result)
                if report is not None:
                    report(len(results))
    finally:
        pool.shutdown(cancel_futures=True)
    return results


@contextmanager
def _bombs_are_errors() -> Iterator[None]:
    # Warning filters belong to the whole process, so this is entered outside the threads, never inside.
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


@cache
def _formats() -> tuple[str, ...]:
    """Pillow's names of the formats that are read, so that a renamed file cannot reach, say, Ghostscript."""
    format_of = Image.registered_extensions()
    wanted = {format_of[suffix] for suffix in IMAGE_SUFFIXES if suffix in format_of}
    return tuple(name for name in Image.ID if name in wanted)


def _read(source: _File, size: Size | None, channels: int) -> Pixels:
    try:
        with Image.open(_openable(source), formats=_formats()) as opened:
            image = convert(ImageOps.exif_transpose(opened), channels)
        return to_array(image if size is None else fit(image, size))
    except _DECODER_ERRORS as error:
        raise _BadImageError(_reason(error)) from error


def _openable(source: _File) -> str | Path | BinaryIO:
    return io.BytesIO(source.content()) if isinstance(source, Member) else source


def _damaged(file: ImageFile, reason: _BadImageError) -> InlayError:
    return InlayError(
        f"'{file}' cannot be read as an image ({reason}); repair it, or pass --skip-bad to leave such files out "
        "(skip_bad=True in Python)."
    )


def _size_of(file: ImageFile) -> Size | None:
    try:
        with Image.open(_openable(file), formats=_formats()) as image:
            lies_on_its_side = image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
            return image.size if lies_on_its_side else (image.height, image.width)
    except _DECODER_ERRORS:
        return None


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "no known image format"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "more pixels than is safe to decode"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split()).rstrip(".") or "damaged file"
