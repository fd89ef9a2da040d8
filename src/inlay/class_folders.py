"""Images in one folder per class, by copies or by links."""

import os
import re
import shutil
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path

from inlay.clusters import SortedImage
from inlay.engine.checkpoint import sync_folder, writing
from inlay.errors import InlayError
from inlay.output_file import refuse_run_folder, refuse_unnamed

__all__ = ["check_class_folders", "folder_names", "write_class_folders"]

# What some file system or shell gives a meaning of its own.
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
# File systems allow 255 bytes; a number may follow.
_LONGEST = 200


def folder_names(names: Mapping[int, str]) -> dict[int, str]:
    """Return a folder for each class: a plain name that leads nowhere else, and no two alike.

    Names that differ by case or by the way of writing accents count as alike, as some file systems do not tell them
    apart; then the id of the class follows.

    Args:
        names: Names of the classes by id.
    """
    chosen: dict[int, str] = {}
    taken: set[str] = set()
    for id, name in sorted(names.items()):
        chosen[id] = _free(_safe(name), id, taken)
    return chosen


def check_class_folders(folder: Path, overwrite: bool) -> None:
    """Make sure that class folders may be made in a folder.

    Args:
        folder: A folder that does not exist or is empty.
        overwrite: Whether it may hold something.

    Raises:
        InlayError: If it may not, or lies in a run folder.
    """
    refuse_run_folder(folder)
    refuse_unnamed(folder)
    if folder.exists() and not folder.is_dir():
        raise InlayError(f"{folder} is a file; give the name of a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise InlayError(
            f"{folder} holds something already; choose a new folder, or pass --overwrite to replace the files in it."
        )


def write_class_folders(
    images: Iterable[SortedImage], folder: Path, *, link: bool = False, overwrite: bool = False
) -> int:
    """Put the new images of a stage into one folder per class; images without a class are left out.

    Args:
        images: The images, which must be files.
        folder: Where the folders are made; it appears whole or not at all unless it holds something already.
        link: Make symbolic links instead of copies.
        overwrite: Whether the folder may hold something; files of the same names are replaced, others stay.

    Returns:
        Number of images.

    Raises:
        InlayError: If an image is no file, or the folder may not be written, or cannot be.
    """
    check_class_folders(folder, overwrite)
    chosen = [image for image in images if image.verdict == "new" and image.class_id is not None]
    missing = next((image.path for image in chosen if not os.path.isfile(image.path)), None)
    if missing is not None:
        raise InlayError(f"'{missing}' is no file and cannot be copied; write --csv FILE instead of --clusters.")
    places = _places(chosen)
    unfinished = folder.with_name(f".{folder.name}.exporting")
    with writing(folder):
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir()
        try:
            for image, place in places:
                _put(image.path, unfinished / place, link)
            _move(unfinished, folder, [place for _, place in places])
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        sync_folder(folder.parent)
    return len(places)


def _places(images: Sequence[SortedImage]) -> list[tuple[SortedImage, Path]]:
    """Return where each image goes, as a path of class folder and file."""
    folders = folder_names({image.class_id: image.class_name for image in images if image.class_id is not None})
    taken: dict[str, set[str]] = {name: set() for name in folders.values()}
    places = []
    for image in images:
        assert image.class_id is not None
        folder = folders[image.class_id]
        stem, suffix = os.path.splitext(os.path.basename(image.path))
        places.append((image, Path(folder, _free(stem, 2, taken[folder], suffix))))
    return places


def _put(source: str, target: Path, link: bool) -> None:
    target.parent.mkdir(exist_ok=True)
    if link:
        target.symlink_to(source)
    else:
        shutil.copy2(source, target)


def _move(unfinished: Path, folder: Path, places: Iterable[Path]) -> None:
    if not folder.exists() or not any(folder.iterdir()):
        os.rename(unfinished, folder)
        return
    for place in places:
        inner = folder / place.parent
        # A link would lead the files elsewhere.
        if inner.is_symlink():
            raise InlayError(f"{inner} is a link; remove it, or choose a new folder.")
        inner.mkdir(exist_ok=True)
        os.replace(unfinished / place, folder / place)


def _safe(name: str) -> str:
    cleaned = _UNSAFE.sub("_", unicodedata.normalize("NFC", name)).strip(" .")
    cleaned = cleaned.encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore").strip(" .")
    return f"_{cleaned}" if not cleaned or _RESERVED.fullmatch(cleaned) else cleaned


def _free(stem: str, further: int, taken: set[str], suffix: str = "") -> str:
    """Return a name that is not taken, with a number if need be, and take it."""
    stems = chain([stem, f"{stem}-{further}"], (f"{stem}-{number}" for number in count(2)))
    name = next(name for name in (f"{stem}{suffix}" for stem in stems) if _key(name) not in taken)
    taken.add(_key(name))
    return name


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
