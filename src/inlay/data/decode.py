"""Image files turned into pixels, many at a time."""

import ctypes
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import BinaryIO, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError, _imaging
from PIL.ImageFile import ImageFile as OpenImage
from torch import Tensor

from inlay.data.listing import ImageFile
from inlay.data.opening import DECODER_ERRORS, formats, openable, read_header
from inlay.data.pixels import Pixels, Size, as_size, check_channels, convert, fit, to_array
from inlay.data.sides import chosen_size
from inlay.errors import InlayError

__all__ = [
    "Progress",
    "common_size",
    "decode_files",
    "decode_image",
    "decoding_threads",
    "in_parallel",
    "read_file",
    "visit_files",
]

Progress: TypeAlias = Callable[[int, int], None]
_File: TypeAlias = str | BinaryIO | ImageFile
_Result = TypeVar("_Result")

_FILES_PER_TASK = 32
_MOST_THREADS = 16

# Each of these may need a gigabyte while it is decoded, so no two are at a time.
_LARGE_PIXELS = 25_000_000
_one_large_image = threading.Lock()


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
        with _quiet_but_for_bombs():
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

    in_parallel(decode, range(0, len(files), _FILES_PER_TASK), report)
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
    """Choose one size for a list of image files, see `chosen_size`; files that cannot be read have no say."""

    def measure(first: int) -> list[Size]:
        headers = (read_header(file) for file in files[first : first + _FILES_PER_TASK])
        return [header.size for header in headers if header is not None]

    measured = in_parallel(measure, range(0, len(files), _FILES_PER_TASK))
    return chosen_size([size for part in measured for size in part])


def in_parallel(
    work: Callable[[int], _Result], tasks: Sequence[int], report: Callable[[int], None] | None = None
) -> list[_Result]:
    """Do something to many image files at a time, with Pillow's warnings under control.

    Args:
        work: What to do; called with a task by several threads at a time.
        tasks: The tasks.
        report: Called after each with the number of those done.

    Returns:
        The results in the order of the tasks.
    """
    # Threads are enough: Pillow lets go of the interpreter lock while it decodes and scales.
    results: list[_Result] = []
    with _quiet_but_for_bombs():
        pool = ThreadPoolExecutor(max_workers=decoding_threads())
        try:
            for result in pool.map(work, tasks):
                results.append(result)
                if report is not None:
                    report(len(results))
        finally:
            pool.shutdown(cancel_futures=True)
    return results


@contextmanager
def _quiet_but_for_bombs() -> Iterator[None]:
    """What Pillow warns of is either harmless, or an error later on that names the file."""
    _silence_decoders()
    # Warning filters belong to the whole process, so this is entered outside the threads, never inside.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


@cache
def _silence_decoders() -> None:
    """Keep Pillow and libtiff from writing lines of their own to stderr; their errors are raised all the same."""
    # Python prints what is logged where nobody has asked for logs.
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    try:
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)
    except (AttributeError, OSError):  # a Pillow with libtiff inside, or without one
        return


def _read(source: _File, size: Size | None, channels: int) -> Pixels:
    try:
        with Image.open(openable(source), formats=formats()) as opened:
            _refuse_gaps(opened)
            with _one_large_image if opened.width * opened.height > _LARGE_PIXELS else nullcontext():
                image = convert(ImageOps.exif_transpose(opened), channels)
                return to_array(image if size is None else fit(image, size))
    except DECODER_ERRORS as error:
        raise _BadImageError(_reason(error)) from error


def _refuse_gaps(image: OpenImage) -> None:
    """Refuse a TIFF whose strips or tiles end before its size does: Pillow would read black, of any declared size."""
    if image.format == "TIFF" and image.tile:
        right, bottom = (max(extents[side] for _, extents, *_ in image.tile if extents) for side in (2, 3))
        if right * bottom < image.width * image.height:
            raise ValueError("its strips do not fill its size")


def _damaged(file: ImageFile, reason: _BadImageError) -> InlayError:
    return InlayError(
        f"'{file}' cannot be read as an image ({reason}); repair it, or pass --skip-bad to leave such files out "
        "(skip_bad=True in Python)."
    )


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "no known image format"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "more pixels than is safe to decode"
    if isinstance(error, MemoryError):
        return "more memory needed than there is"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split()).rstrip(".") or "damaged file"
