"""What one pass over image files finds out, without keeping an image."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inlay.data import cache as disk
from inlay.data.decode import Progress, common_size, visit_files
from inlay.data.images import fingerprint_of
from inlay.data.listing import ImageFile
from inlay.data.pixels import Pixels, Size

__all__ = ["Survey", "survey", "surveyed_size"]

_LEVELS = 256


@dataclass(frozen=True)
class Survey:
    """Facts about image files, N in all, of which M can be read.

    Attributes:
        size: Height and width that the images are read at.
        good: Which files can be read, bool [N].
        fingerprints: Fingerprints of the M images as numbers, uint64 [M].
        level_counts: How often each level occurs in each channel of the M images, int64 [C, 256].
    """

    size: Size
    good: npt.NDArray[np.bool_]
    fingerprints: npt.NDArray[np.uint64]
    level_counts: npt.NDArray[np.int64]


def survey(
    files: Sequence[ImageFile],
    size: Size | None,
    channels: int,
    *,
    skip_bad: bool = False,
    cache: bool = True,
    on_progress: Progress | None = None,
) -> Survey:
    """Decode every file once, in parallel, a few in memory at a time; the facts are kept in the cache folder.

    Args:
        files: The files in order.
        size: Height and width to scale and centre-crop to; None is the `common_size` of the files.
        channels: 1 for grey, 3 for RGB.
        skip_bad: Leave damaged files out.
        cache: Keep the facts on disk, and take them from there.
        on_progress: Called now and then with the number of files done and the number of all files.

    Raises:
        InlayError: A file is damaged and `skip_bad` is off.
    """
    key = _key(files, size, channels) if cache else ""
    stored = _stored(key, len(files), channels) if cache else None
    # Facts about what is left without the damaged files are of no use to those who want to hear of them.
    if stored is not None and (skip_bad or stored.good.all()):
        return stored
    found = _found(files, size or common_size(files), channels, skip_bad, on_progress)
    if cache:
        sides = np.array(found.size, dtype=np.int64)
        disk.write_arrays(key, (sides, found.good, found.fingerprints, found.level_counts))
    return found


def surveyed_size(files: Sequence[ImageFile], size: Size | None, channels: int) -> Size | None:
    """The size at which files were surveyed before, or None if they were not; arguments as for `survey`."""
    stored = _stored(_key(files, size, channels), len(files), channels)
    return None if stored is None else stored.size


def _key(files: Sequence[ImageFile], size: Size | None, channels: int) -> str:
    return f"{disk.cache_key(files, size, channels)}-facts"


def _found(
    files: Sequence[ImageFile], size: Size, channels: int, skip_bad: bool, on_progress: Progress | None
) -> Survey:
    fingerprints = np.zeros(len(files), dtype=np.uint64)
    counts = np.zeros((channels, _LEVELS), dtype=np.int64)
    lock = threading.Lock()

    def note(number: int, image: Pixels) -> None:
        fingerprints[number] = int(fingerprint_of(image), 16)
        own = np.stack([np.bincount(channel.ravel(), minlength=_LEVELS) for channel in image])
        with lock:
            np.add(counts, own, out=counts)

    good = visit_files(files, size, channels, note, skip_bad=skip_bad, on_progress=on_progress)
    return Survey(size, good, fingerprints[good], counts)


def _stored(key: str, count: int, channels: int) -> Survey | None:
    arrays = disk.read_arrays(key, 4)
    if arrays is None:
        return None
    sides, good, fingerprints, counts = arrays
    whole = (
        sides.shape == (2,)
        and good.dtype == np.bool_
        and good.shape == (count,)
        and fingerprints.dtype == np.uint64
        and fingerprints.shape == (good.sum(),)
        and counts.shape == (channels, _LEVELS)
    )
    return Survey((int(sides[0]), int(sides[1])), good, fingerprints, counts) if whole else None
