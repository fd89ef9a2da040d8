"""Decoded images, and facts about images, kept on disk, so that a folder of image files is decoded once."""

import hashlib
import json
import os
import tempfile
import time
import tokenize
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
from numpy.lib.format import read_array

from inlay.data.listing import ImageFile, Member
from inlay.data.pixels import Pixels, Size

__all__ = ["cache_folder", "cache_key", "cached_bytes", "read_arrays", "read_cache", "write_arrays", "write_cache"]

# Raised whenever the same files would be decoded to other pixels, or the file layout below changes.
_FORMAT = 2

# Marks unfinished files as ours, since $INLAY_CACHE may name a folder that other programs use.
_UNFINISHED = ("inlay-", ".part")
_UNFINISHED_SECONDS = 24 * 60 * 60

# A damaged header can claim anything, a shape beyond all memory included.
_UNREADABLE = (OSError, ValueError, EOFError, SyntaxError, TypeError, MemoryError, tokenize.TokenError)


def cache_folder() -> Path:
    """The folder of cached images: $INLAY_CACHE if set, else ~/.cache/inlay."""
    named = os.environ.get("INLAY_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "inlay"


def cache_key(files: Sequence[ImageFile], size: Size | None, channels: int) -> str:
    """Hexadecimal key of a decoding job: it changes with Pillow, and with any file's path, length or date of change.

    Args:
        files: The files in order.
        size: The size asked for; None when it is chosen from the files.
        channels: The channels asked for.
    """
    key = hashlib.blake2b(json.dumps([_FORMAT, PIL.__version__, size, channels]).encode(), digest_size=16)
    for file in files:
        key.update(json.dumps(_identity(file)).encode())
    return key.hexdigest()


def cached_bytes(key: str) -> int | None:
    """How many bytes are stored under a key, or None if there is nothing."""
    try:
        return _file_of(key).stat().st_size
    except OSError:
        return None


def read_cache(key: str, count: int) -> tuple[Pixels, npt.NDArray[np.bool_]] | None:
    """Fetch what `write_cache` stored, or None if there is nothing sound under the key.

    Args:
        key: The key of the job.
        count: The number of files in the job.
    """
    stored = read_arrays(key, 2)
    if stored is None:
        return None
    pixels, good = stored
    whole = (
        pixels.dtype == np.uint8
        and pixels.ndim == 4
        and good.dtype == np.bool_
        and good.shape == (count,)
        and len(pixels) == good.sum()
    )
    return (pixels, good) if whole else None


def write_cache(key: str, pixels: Pixels, good: npt.NDArray[np.bool_]) -> None:
    """Store decoded images, whole or not at all.

    Args:
        key: The key of the job.
        pixels: The images that could be read, uint8 [M, C, H, W].
        good: For each file of the job whether it could be read, bool [N].
    """
    write_arrays(key, (pixels, good))


def read_arrays(key: str, count: int) -> list[npt.NDArray[Any]] | None:
    """Fetch what `write_arrays` stored, or None if there is nothing sound under the key.

    Args:
        key: The key they were stored under.
        count: The number of arrays.
    """
    try:
        with _file_of(key).open("rb") as file:
            *arrays, checksum = (read_array(file, allow_pickle=False) for _ in range(count + 1))
    except _UNREADABLE:
        return None
    return arrays if checksum.shape == () and int(checksum) == _checksum(arrays) else None


def write_arrays(key: str, arrays: Sequence[npt.NDArray[Any]]) -> None:
    """Store arrays, whole or not at all.

    A folder that cannot be written to is passed over in silence, as the cache only saves time.

    Args:
        key: The key to store them under.
        arrays: Arrays of numbers.
    """
    unfinished: str | None = None
    try:
        target = _file_of(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        with tempfile.NamedTemporaryFile(
            dir=target.parent, prefix=_UNFINISHED[0], suffix=_UNFINISHED[1], delete=False
        ) as file:
            unfinished = file.name
            # One after the other in one file; the last proves that the others are whole.
            for array in (*arrays, np.array(_checksum(arrays), dtype=np.int64)):
                np.save(file, array, allow_pickle=False)
        os.replace(unfinished, target)
        unfinished = None
    except OSError:
        return
    finally:
        if unfinished is not None:
            Path(unfinished).unlink(missing_ok=True)


def _file_of(key: str) -> Path:
    return cache_folder() / f"{key}.npy"


def _sweep(folder: Path) -> None:
    """Remove what runs that were killed while writing left behind."""
    oldest = time.time() - _UNFINISHED_SECONDS
    for file in folder.glob("*".join(_UNFINISHED)):
        with suppress(OSError):
            if file.stat().st_mtime < oldest:
                file.unlink()


def _checksum(arrays: Sequence[npt.NDArray[Any]]) -> int:
    checksum = 0
    for array in arrays:
        # An empty array cannot be cast to bytes.
        checksum = zlib.crc32(np.ascontiguousarray(array).data.cast("B"), checksum) if array.size else checksum
    return checksum


def _identity(file: ImageFile) -> list[str | int]:
    if isinstance(file, Member):
        return [os.path.abspath(file.archive), file.name, file.offset, file.length, *_stamp(file.archive)]
    return [os.path.abspath(file), *_stamp(file)]


def _stamp(file: Path) -> tuple[int, int]:
    try:
        status = os.stat(file)
    except OSError:
        # Decoding will name the missing file; once it is there its stamp differs.
        return -1, -1
    return status.st_size, status.st_mtime_ns
