"""Tar shards in the WebDataset convention: the files of a sample share a name up to its first dot."""

import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from inlay.data.arrays import as_labels
from inlay.data.listing import IMAGE_SUFFIXES, Listing, Member, Reader, Split, image_files, sub_folders
from inlay.errors import InlayError

__all__ = ["READER", "is_pattern", "read_pattern"]

_SUFFIX = ".tar"
_LABEL = "cls"
_CLASSES = "classes.txt"
_BLOCK_BYTES = 512
_MISSING = 'Tar shards are read with the package webdataset; install it with `pip install "inlay[webdataset]"`.'


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern of shards, such as "shards-{000..012}.tar"."""
    return "{" in text and text.endswith(_SUFFIX)


def read_pattern(pattern: str) -> Listing:
    """List the images of the shards that a pattern with braces names.

    Args:
        pattern: Such as "shards-{000..012}.tar", or "{train,more}.tar".

    Raises:
        InlayError: The pattern is not understood, or a shard is missing or damaged.
    """
    shards = [Path(name).expanduser() for name in _expanded(pattern)]
    missing = next((shard for shard in shards if not shard.is_file()), None)
    if missing is not None:
        raise InlayError(f"There is no shard '{missing}'; check the numbers in '{pattern}'.")
    return _listing(shards)


def _expanded(pattern: str) -> list[str]:
    try:
        from webdataset.shardlists import expand_urls
    except ImportError as error:
        raise InlayError(_MISSING) from error
    try:
        return list(expand_urls(pattern))
    except (AssertionError, ValueError) as error:
        raise InlayError(
            f"The pattern '{pattern}' is not understood ({error}); write one such as shards-{{000..012}}.tar."
        ) from error


def _recognises(path: Path) -> bool:
    return bool(_shards_of(path))


def _read(path: Path, split: Split) -> Listing:
    return _listing(_shards_of(path))


def _shards_of(path: Path) -> list[Path]:
    """The shard itself, or those of a folder, sorted by name; an archive beside images or folders is no shard."""
    if path.is_file():
        return [path] if path.suffix.lower() == _SUFFIX else []
    if not path.is_dir() or sub_folders(path) or image_files(path):
        return []
    with os.scandir(path) as entries:
        names = [entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".")]
    return [path / name for name in sorted(names) if name.lower().endswith(_SUFFIX)]


def _listing(shards: list[Path]) -> Listing:
    images: list[Member] = []
    labels: list[int] = []
    for sample in _samples(shards):
        image = _image_of(sample)
        if image is None:
            continue
        images.append(image)
        if _LABEL in sample:
            labels.append(_label_in(sample[_LABEL]))
        if len(labels) not in (0, len(images)):
            with_label, without = (image, images[0]) if _LABEL in sample else (images[0], image)
            raise InlayError(
                f"'{with_label}' has a .{_LABEL} file beside it and '{without}' has none; label all images or none."
            )
    if not images:
        raise InlayError(
            f"The shards from '{shards[0]}' on hold no images; pack files that end in one of "
            f"{', '.join(sorted(IMAGE_SUFFIXES))}."
        )
    if not labels:
        return Listing(tuple(images))
    indices, names = as_labels(labels, _class_names(shards[0].parent / _CLASSES), f"the shards from '{shards[0]}' on")
    return Listing(tuple(images), tuple(indices.tolist()), names)


def _samples(shards: list[Path]) -> Iterator[dict[str, Any]]:
    """Group the members of all shards into samples: their members by suffix."""
    try:
        from webdataset.tariterators import group_by_keys
    except ImportError as error:
        raise InlayError(_MISSING) from error
    for shard in shards:
        # The library's own iterator over a tar file does not say where in the file a member lies.
        files = ({"fname": member.name, "data": member, "__url__": str(shard)} for member in _members(shard))
        samples: Iterable[dict[str, Any]] = group_by_keys(files)
        try:
            yield from samples
        except ValueError as error:
            name = str(error.args[0]).partition(": duplicate")[0]
            raise InlayError(
                f"The shard '{shard}' holds '{name}' twice; give each sample a name of its own."
            ) from error


def _members(shard: Path) -> Iterator[Member]:
    try:
        with tarfile.open(shard, "r:") as archive:
            while (entry := archive.next()) is not None:
                if entry.isreg():
                    yield Member(shard, entry.name, entry.offset_data, entry.size)
                # The archive would keep a record of every member.
                archive.members.clear()  # type: ignore[attr-defined]
            end = archive.offset
        with shard.open("rb") as file:
            # A damaged header looks to tarfile like the end of the archive, which is empty blocks.
            if os.pread(file.fileno(), _BLOCK_BYTES, end).strip(b"\0"):
                raise tarfile.ReadError(f"no header at byte {end}")
    except tarfile.TarError as error:
        raise InlayError(
            f"The shard '{shard}' is damaged or compressed ({error}); pack it anew as a plain .tar file."
        ) from error


def _image_of(sample: dict[str, Any]) -> Member | None:
    found = [member for suffix, member in sample.items() if f".{suffix}" in IMAGE_SUFFIXES]
    if len(found) > 1:
        raise InlayError(f"The sample of '{found[0]}' has a second image, '{found[1].name}'; keep one per sample.")
    return found[0] if found else None


def _label_in(member: Member) -> int:
    try:
        return int(member.content())
    except ValueError as error:
        raise InlayError(f"'{member}' holds no whole number; write the number of the class into it.") from error


def _class_names(file: Path) -> list[str] | None:
    if not file.is_file():
        return None
    try:
        return [line.strip() for line in file.read_text(encoding="utf-8-sig").strip().splitlines()]
    except UnicodeDecodeError as error:
        raise InlayError(f"'{file}' is not UTF-8 text; write one class name per line.") from error


READER = Reader("a .tar shard of WebDataset samples, or a folder of them", _recognises, _read)
