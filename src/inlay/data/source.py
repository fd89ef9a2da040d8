"""The one way in for images: whatever holds them, `load` makes an `ImageSet` of it and `open_images` may stream it."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
import torch

from inlay.data import cache as disk
from inlay.data import cifar, folders, imagefile, imagelist, npz, shards, tinyimagenet
from inlay.data.arrays import Array, Labels, is_array
from inlay.data.decode import Progress, common_size, decode_files
from inlay.data.demo import DEMO_SIZES, demo_digits
from inlay.data.images import ImageSet
from inlay.data.listing import Listing, Reader, Split
from inlay.data.memory import SHARE_OF_MEMORY, available_memory
from inlay.data.pixels import Size, as_size, check_channels, conform
from inlay.data.streamed import StreamedSet
from inlay.data.survey import surveyed_size
from inlay.errors import InlayError

__all__ = ["READERS", "Measure", "Source", "load", "measure", "open_images", "splits"]

_PathLike: TypeAlias = str | os.PathLike[str]
Source: TypeAlias = _PathLike | Sequence[_PathLike] | ImageSet | StreamedSet | Array | tuple[Array, Labels]

# The first reader that recognises a path reads it, so the particular come before the general.
READERS: tuple[Reader, ...] = (
    cifar.READER,
    tinyimagenet.READER,
    npz.READER,
    imagelist.READER,
    imagefile.READER,
    shards.READER,
    folders.READER,
)

_FILE_CHANNELS = 3
_DEMO = "demo"


@dataclass(frozen=True)
class Measure:
    """What a source holds.

    Attributes:
        images: Number of images, those included that turn out to be damaged.
        size: Height and width that they are read at.
        channels: Channels that they are read with.
    """

    images: int
    size: Size
    channels: int


def load(
    source: Source,
    *,
    split: Split = "train",
    size: int | Size | None = None,
    channels: int | None = None,
    skip_bad: bool = False,
    cache: bool = True,
    on_progress: Progress | None = None,
) -> ImageSet:
    """Read images from a path, a list of image paths, arrays, or a set that is already there.

    Image files are decoded in parallel and the result is kept in the cache folder ($INLAY_CACHE, or
    ~/.cache/inlay); if that folder cannot be written to, they are simply decoded anew each time.

    Args:
        source: A path to anything that `READERS` understand; a pattern of tar shards such as
            "shards-{000..012}.tar"; a list of image paths; an `ImageSet`; a `StreamedSet`; an array of images; a
            pair of images and labels; or "demo" for the digits of `demo_digits`, unless there is a file or folder
            of that name.
        split: Which part to read where a source has parts, see `splits`; others are read whole either way.
        size: A side, or (height, width), that images are scaled and centre-cropped to. None keeps the size of
            arrays and of image files that share one; other files become squares of a size that suits them.
        channels: 1 for grey or 3 for colour. None gives 3 for image files and leaves arrays as they are.
        skip_bad: Leave damaged image files out and name them in `ImageSet.skipped`.
        cache: Keep decoded image files on disk.
        on_progress: Called now and then with the number of files decoded and the number of all files.

    Raises:
        InlayError: The source is missing, not understood, empty or damaged.
    """
    opened = open_images(
        source,
        split=split,
        size=size,
        channels=channels,
        skip_bad=skip_bad,
        cache=cache,
        on_progress=on_progress,
        stream=False,
    )
    assert isinstance(opened, ImageSet)
    return opened


def open_images(
    source: Source,
    *,
    split: Split = "train",
    size: int | Size | None = None,
    channels: int | None = None,
    skip_bad: bool = False,
    cache: bool = True,
    on_progress: Progress | None = None,
    stream: bool | None = None,
    memory: int | None = None,
) -> ImageSet | StreamedSet:
    """Read images as `load` does, or leave those of image files and tar shards on disk and decode them when needed.

    Files that are streamed are decoded once beforehand, which finds the damaged ones and the fingerprints; what was
    found is kept in the cache folder, the pixels are not.

    Args:
        source: Whatever `load` reads.
        split: As for `load`.
        size: As for `load`.
        channels: As for `load`.
        skip_bad: As for `load`.
        cache: Keep decoded images, or what was found out about streamed ones, on disk.
        on_progress: As for `load`.
        stream: True always streams image files and shards, False never does, None streams them if they would take
            more than a quarter of the memory when decoded. Arrays are in memory and stay there.
        memory: The memory in bytes; None is what is available, within the limit of the process's group.

    Raises:
        InlayError: The source is missing, not understood, empty or damaged.
    """
    if split not in ("train", "test"):
        raise InlayError(f"There is no split {split!r}; write 'train' or 'test'.")
    target = as_size(size)
    check_channels(channels)
    if isinstance(source, StreamedSet):
        if stream is not False and target in (None, source.size) and channels in (None, source.channels):
            return source
        target, channels = target or source.size, channels or source.channels
    with _disk_errors_in_words():
        found = _demo(split, target) if _is_demo(source) else _open(source, split)
    if not isinstance(found, Listing):
        if len(found) == 0:
            raise InlayError("The source holds no images; pass at least one.")
        return conform(found, target, channels)
    job = _Job(found, target, channels or _FILE_CHANNELS, skip_bad, cache, on_progress)
    if stream is None:
        stream = job.decoded_bytes() > SHARE_OF_MEMORY * (available_memory() if memory is None else memory)
    return job.streamed() if stream else job.decoded()


def measure(source: Source, split: Split = "train") -> Measure:
    """Find out what `load` would read; image files are not decoded.

    Args:
        source: Whatever `load` reads.
        split: As for `load`.

    Raises:
        InlayError: The source is missing, not understood or empty.
    """
    with _disk_errors_in_words():
        found = _demo(split, None) if _is_demo(source) else _open(source, split)
    if isinstance(found, Listing):
        return Measure(len(found.files), common_size(found.files), _FILE_CHANNELS)
    return Measure(len(found), found.size, found.channels)


def splits(source: Source) -> tuple[Split, ...]:
    """The splits a source offers; empty if it is one undivided set of images.

    Raises:
        InlayError: The source is a path that is missing, unreadable or not understood.
    """
    if _is_demo(source):
        return ("train", "test")
    if not isinstance(source, str | os.PathLike) or _is_pattern(source):
        return ()
    with _disk_errors_in_words():
        path = _existing(source)
        return _reader_of(path).splits(path)


@contextmanager
def _disk_errors_in_words() -> Iterator[None]:
    """Any question about a path can fail where its folders are not readable, so it is caught once for all."""
    try:
        yield
    except OSError as error:
        what = "The source" if error.filename is None else f"'{error.filename}'"
        reason = (error.strerror or "unknown reason").lower()
        raise InlayError(f"{what} cannot be read ({reason}); make it readable, or name another path.") from error


def _is_demo(source: Source) -> bool:
    return isinstance(source, str) and source == _DEMO and not Path(source).exists()


def _is_pattern(source: _PathLike) -> bool:
    return shards.is_pattern(os.fspath(source)) and not Path(source).expanduser().exists()


def _demo(split: Split, size: Size | None) -> ImageSet:
    smallest, largest = DEMO_SIZES
    # Any size but the small one is made from the original pixels.
    train, test = demo_digits(smallest if size in (None, (smallest, smallest)) else largest)
    return train if split == "train" else test


def _open(source: Source, split: Split) -> ImageSet | Listing:
    if isinstance(source, ImageSet):
        return source
    if isinstance(source, StreamedSet):
        return source.listing()
    if isinstance(source, str | os.PathLike):
        if _is_pattern(source):
            return shards.read_pattern(os.fspath(source))
        return _open_path(_existing(source), split)
    if is_array(source):
        return ImageSet.from_arrays(cast(Array, source))
    if not isinstance(source, Sequence):
        raise InlayError(
            f"A {type(source).__name__} cannot be read as images; pass a path, a list of paths or an array."
        )
    if all(isinstance(item, str | os.PathLike) for item in source):
        return _open_files(cast(Sequence[_PathLike], source))
    if len(source) == 2 and is_array(source[0]):
        images, labels = cast(tuple[Array, Labels], source)
        return ImageSet.from_arrays(images, labels)
    raise InlayError("This sequence cannot be read as images; pass a list of paths, or a pair (images, labels).")


def _open_path(path: Path, split: Split) -> ImageSet | Listing:
    reader = _reader_of(path)
    offered = reader.splits(path)
    if offered and split not in offered:
        raise InlayError(
            f"'{path}' has no {split} images but {' and '.join(offered)}; name a folder of {split} images."
        )
    return reader.read(path, split)


def _open_files(paths: Sequence[_PathLike]) -> Listing:
    if not paths:
        raise InlayError("The list of images is empty; name at least one image file.")
    files = tuple(Path(path).expanduser() for path in paths)
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise InlayError(f"There is no image file '{missing}'; check the spelling of its path.")
    return Listing(files)


def _existing(source: _PathLike) -> Path:
    path = Path(source).expanduser()
    if not path.exists():
        raise InlayError(f"There is no file or folder '{path}'; check the spelling of its path.")
    return path


def _reader_of(path: Path) -> Reader:
    for reader in READERS:
        if reader.recognises(path):
            return reader
    understood = "; ".join(reader.layout for reader in READERS)
    raise InlayError(f"'{path}' is not understood; name one of these: {understood}.")


@dataclass(frozen=True)
class _Job:
    """Image files to be read, and how."""

    listing: Listing
    size: Size | None
    channels: int
    skip_bad: bool
    cache: bool
    on_progress: Progress | None

    @cached_property
    def key(self) -> str:
        return disk.cache_key(self.listing.files, self.size, self.channels)

    @cached_property
    def final_size(self) -> Size:
        return self.size or common_size(self.listing.files)

    def decoded_bytes(self) -> int:
        stored = disk.cached_bytes(self.key) if self.cache else None
        if stored is not None:
            return stored
        # Choosing a size opens every file, which an earlier survey has done already.
        known = surveyed_size(self.listing.files, self.size, self.channels) if self.cache else None
        return len(self.listing.files) * self.channels * math.prod(known or self.final_size)

    def streamed(self) -> StreamedSet:
        return StreamedSet.from_listing(
            self.listing,
            self.size,
            self.channels,
            skip_bad=self.skip_bad,
            cache=self.cache,
            on_progress=self.on_progress,
        )

    def decoded(self) -> ImageSet:
        files = self.listing.files
        stored = disk.read_cache(self.key, len(files)) if self.cache else None
        # A set stored without its damaged files is of no use to those who want to hear of them.
        if stored is None or not (self.skip_bad or stored[1].all()):
            stored = decode_files(
                files, self.final_size, self.channels, skip_bad=self.skip_bad, on_progress=self.on_progress
            )
            if self.cache:
                disk.write_cache(self.key, *stored)
        pixels, good = stored
        left = self.listing.kept(good)
        return ImageSet(
            torch.from_numpy(pixels),
            tuple(str(file) for file in left.files),
            None if left.labels is None else torch.tensor(left.labels, dtype=torch.int64),
            left.class_names,
            skipped=tuple(str(files[number]) for number in np.flatnonzero(~good)),
        )
