"""The one way in for images: whatever holds them, `load` makes an `ImageSet` of it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
import torch

from inlay.data import cache as disk
from inlay.data import cifar, folders, imagefile, imagelist, npz, tinyimagenet
from inlay.data.arrays import Array, Labels, is_array
from inlay.data.decode import Progress, common_size, decode_files
from inlay.data.demo import DEMO_SIZES, demo_digits
from inlay.data.images import ImageSet
from inlay.data.listing import Listing, Reader, Split
from inlay.data.pixels import Size, as_size, check_channels, conform
from inlay.errors import InlayError

__all__ = ["READERS", "Source", "load", "splits"]

_PathLike: TypeAlias = str | os.PathLike[str]
Source: TypeAlias = _PathLike | Sequence[_PathLike] | ImageSet | Array | tuple[Array, Labels]

# The first reader that recognises a path reads it, so the particular come before the general.
READERS: tuple[Reader, ...] = (
    cifar.READER,
    tinyimagenet.READER,
    npz.READER,
    imagelist.READER,
    imagefile.READER,
    folders.READER,
)

_FILE_CHANNELS = 3
_DEMO = "demo"


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
        source: A path to anything that `READERS` understand; a list of image paths; an `ImageSet`; an
            array of images; a pair of images and labels; or "demo" for the digits of `demo_digits`, unless
            there is a file or folder of that name.
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
    if split not in ("train", "test"):
        raise InlayError(f"There is no split {split!r}; write 'train' or 'test'.")
    target = as_size(size)
    check_channels(channels)
    with _disk_errors_in_words():
        found = _demo(split, target) if _is_demo(source) else _open(source, split)
    if isinstance(found, Listing):
        return _decoded(found, target, channels or _FILE_CHANNELS, skip_bad, cache, on_progress)
    if len(found) == 0:
        raise InlayError("The source holds no images; pass at least one.")
    return conform(found, target, channels)


def splits(source: Source) -> tuple[Split, ...]:
    """The splits a source offers; empty if it is one undivided set of images.

    Raises:
        InlayError: The source is a path that is missing, unreadable or not understood.
    """
    if _is_demo(source):
        return ("train", "test")
    if not isinstance(source, str | os.PathLike):
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


def _demo(split: Split, size: Size | None) -> ImageSet:
    smallest, largest = DEMO_SIZES
    # Any size but the small one is made from the original pixels.
    train, test = demo_digits(smallest if size in (None, (smallest, smallest)) else largest)
    return train if split == "train" else test


def _open(source: Source, split: Split) -> ImageSet | Listing:
    if isinstance(source, ImageSet):
        return source
    if isinstance(source, str | os.PathLike):
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


def _decoded(
    listing: Listing,
    size: Size | None,
    channels: int,
    skip_bad: bool,
    cache: bool,
    on_progress: Progress | None,
) -> ImageSet:
    files = listing.files
    key = disk.cache_key(files, size, channels) if cache else ""
    stored = disk.read_cache(key, len(files)) if cache else None
    # A set stored without its damaged files is of no use to those who want to hear of them.
    if stored is None or not (skip_bad or stored[1].all()):
        stored = decode_files(files, size or common_size(files), channels, skip_bad=skip_bad, on_progress=on_progress)
        if cache:
            disk.write_cache(key, *stored)
    pixels, good = stored
    labels = None if listing.labels is None else torch.tensor(listing.labels, dtype=torch.int64)[torch.from_numpy(good)]
    _check_what_is_left(listing, labels, len(pixels))
    return ImageSet(
        torch.from_numpy(pixels),
        tuple(str(files[number]) for number in np.flatnonzero(good)),
        labels,
        listing.class_names,
        skipped=tuple(str(files[number]) for number in np.flatnonzero(~good)),
    )


def _check_what_is_left(listing: Listing, labels: torch.Tensor | None, count: int) -> None:
    if count == 0:
        raise InlayError(
            f"None of the {len(listing.files)} image files can be read, such as '{listing.files[0]}'; "
            "name a folder with sound images."
        )
    if labels is None:
        return
    empty = (torch.bincount(labels, minlength=len(listing.class_names)) == 0).nonzero().flatten().tolist()
    before = set(listing.labels or ())
    lost = next((listing.class_names[label] for label in empty if label in before), None)
    if lost is not None:
        raise InlayError(f"Every image of the class '{lost}' is damaged; replace them or remove the class.")
