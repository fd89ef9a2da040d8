"""Finding the sets of images below a path, also where the folder as a whole is none."""

import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inlay.data import cifar, folders, imagefile, imagelist, npz, shards, tinyimagenet
from inlay.data.findings import SetFindings
from inlay.data.images import ImageSet
from inlay.data.listing import ImageFile, Listing, image_files, sub_folders
from inlay.data.memory import SHARE_OF_MEMORY, available_memory
from inlay.data.pixels import Size
from inlay.data.source import READERS, splits
from inlay.errors import InlayError

__all__ = ["CHANNELS", "IMAGE_FOLDERS", "FoundSet", "find_sets"]

CHANNELS = 3
"""Channels that files are read with."""

IMAGE_FOLDERS = ("class folders", "flat folder")
"""Layouts of image files in folders."""

_OTHER_LAYOUTS = {
    **{cifar.READER: "cifar", tinyimagenet.READER: "tiny-imagenet", npz.READER: "npz"},
    **{imagelist.READER: "list", imagefile.READER: "image", shards.READER: "shards"},
}


@dataclass
class FoundSet:
    """Images that are read together.

    Attributes:
        path: What to name in order to read them.
        split: Which split of the path they are; None if the path has none.
        layout: The layout in words, as in `SetFindings`.
        content: The images, or the files that hold them.
        good: Which of them can be read, bool [N].
        prints: The fingerprints of those, uint64 [M].
    """

    path: str
    split: str | None
    layout: str
    content: Listing | ImageSet
    good: npt.NDArray[np.bool_] = field(init=False)
    prints: npt.NDArray[np.uint64] = field(init=False)

    @property
    def files(self) -> tuple[ImageFile, ...]:
        """The files; none where the images are arrays."""
        return self.content.files if isinstance(self.content, Listing) else ()

    def name(self, place: int) -> str:
        """What an image is called."""
        return str(self.files[place]) if isinstance(self.content, Listing) else self.content.names[place]

    def good_labels(self) -> npt.NDArray[np.int64]:
        """The classes of the images that can be read, int64 [M]; all zero where there are none."""
        labels = self.content.labels
        return np.zeros(len(self.prints), np.int64) if labels is None else np.asarray(labels, np.int64)[self.good]

    def findings(self, target: Size) -> SetFindings:
        """Sum up; files are read at the target size."""
        content, count = self.content, len(self.prints)
        size = content.images.nbytes if isinstance(content, ImageSet) else count * CHANNELS * math.prod(target)
        streamed = isinstance(content, Listing) and size > SHARE_OF_MEMORY * available_memory()
        counts = np.bincount(self.good_labels(), minlength=len(content.class_names)).tolist()
        # Without labels all images were counted as one class, which has no name.
        classes = dict(zip(content.class_names, counts, strict=False))
        return SetFindings(self.path, self.split, self.layout, count, classes, size, streamed)


def find_sets(source: str, problems: list[str]) -> list[FoundSet]:
    """Find the sets of images in a source.

    Args:
        source: A path that `inlay.data.load` reads, a folder of such folders, or a pattern of tar shards.
        problems: Receives sentences on what keeps a folder from being read as it is.

    Raises:
        InlayError: The source is missing or nothing that is understood.
    """
    path = Path(source).expanduser()
    # What is no folder is refused in words here if it is missing, not understood or damaged as a whole.
    if not os.path.isdir(path) and not splits(source) and not path.exists():
        return [FoundSet(source, None, "shards", shards.read_pattern(source))]
    return _sets_at(path, problems, ())


def _sets_at(path: Path, problems: list[str], above: tuple[Path, ...]) -> list[FoundSet]:
    try:
        try:
            return [*_read(path), *_beside_splits(path, problems, above)]
        except InlayError as refusal:
            return _taken_apart(path, refusal, problems, (*above, path.resolve()))
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        problems.append(f"'{error.filename or path}' cannot be read ({reason}); make it readable or remove it.")
        return []


def _read(path: Path) -> list[FoundSet]:
    reader = next(each for each in READERS if each.recognises(path))
    offered = reader.splits(path)
    contents = [(split, reader.read(path, split)) for split in offered or ("train",)]
    if reader is folders.READER:
        layout = IMAGE_FOLDERS[contents[0][1].labels is None]
    else:
        layout = _OTHER_LAYOUTS.get(reader, reader.layout)
    return [FoundSet(str(path), split if offered else None, layout, content) for split, content in contents]


def _beside_splits(path: Path, problems: list[str], above: tuple[Path, ...]) -> list[FoundSet]:
    """The sets in folders beside those of the splits, which are not read with them."""
    splits_at = [folders.split_folder(path, split) for split in splits(path)] if path.is_dir() else []
    if not any(splits_at):
        return []
    found = []
    for folder in (each for each in sub_folders(path) if each not in splits_at):
        troubles: list[str] = []
        sets = _sets_at(folder, troubles, (*above, path.resolve()))
        found += sets
        # A folder without images, such as one of annotations, is none of ours.
        problems += troubles if sets else []
    return found


def _taken_apart(path: Path, refusal: InlayError, problems: list[str], above: tuple[Path, ...]) -> list[FoundSet]:
    """The sets below a folder that is none as a whole; what is sound of class folders that are not all sound."""
    if path.is_file():
        problems.append(str(refusal))
        return []
    inner = [folder for folder in sub_folders(path) if folder.resolve() not in above]
    loops = [folder for folder in sub_folders(path) if folder.resolve() in above]
    problems += [f"'{folder}' is a link to a folder that it lies in; remove it." for folder in loops]
    images = image_files(path)
    if {folder.name for folder in inner} <= {"train", "test", "val"} or any(sub_folders(folder) for folder in inner):
        if not inner and not images:
            problems.append(str(refusal))
        own = [FoundSet(str(path), None, "flat folder", Listing(tuple(images)))] if images else []
        return own + [each for folder in inner for each in _sets_at(folder, problems, above)]
    if images:
        problems.append(str(refusal))
    classes = [folder for folder in inner if image_files(folder)]
    empty = [folder for folder in inner if folder not in classes]
    problems += [f"The class folder '{each}' holds no images; put images into it or remove it." for each in empty]
    files = tuple(file for folder in classes for file in image_files(folder))
    labels = tuple(label for label, folder in enumerate(classes) for _ in image_files(folder))
    listing = Listing(files, labels, tuple(folder.name for folder in classes))
    return [FoundSet(str(path), None, "class folders", listing)] if files else []
