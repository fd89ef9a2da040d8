"""A check-up of images before anything is learned from them: what is there, and what is broken."""

import dataclasses
import os
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

from inlay.data import cifar, imagefile, imagelist, npz, shards, tinyimagenet
from inlay.data.decode import _DECODER_ERRORS, Progress, _formats, _in_parallel, _openable, decode_image
from inlay.data.images import ImageSet
from inlay.data.listing import IMAGE_SUFFIXES, ImageFile, Listing, image_files, sub_folders
from inlay.data.memory import available_memory
from inlay.data.pixels import Size
from inlay.data.source import _SHARE_OF_MEMORY, READERS, splits
from inlay.data.survey import survey
from inlay.errors import InlayError

__all__ = ["Findings", "Repeats", "SetFindings", "SizeFindings", "Watch", "chosen_size", "examine"]

Watch: TypeAlias = Callable[[str], AbstractContextManager[Progress]]
_Sizes: TypeAlias = npt.NDArray[np.int32]

_SIDES = (32, 64, 96, 128, 160, 224)
_MOST_ENLARGEMENT = 1.25
_MOST_NAMED = 10
_FILES_PER_TASK = 32
_CHANNELS = 3
_IMAGE_FOLDERS = ("class folders", "flat folder")
_OTHER_LAYOUTS = {
    **{cifar.READER: "cifar", tinyimagenet.READER: "tiny-imagenet", npz.READER: "npz"},
    **{imagelist.READER: "list", imagefile.READER: "image", shards.READER: "shards"},
}


@dataclass(frozen=True)
class Repeats:
    """Images that are there more than once: how many, and up to ten pairs of equal ones."""

    count: int
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SizeFindings:
    """The sizes of images as they are shown, turned by EXIF where it says so.

    Attributes:
        shorter_sides: Least, median and largest shorter side.
        aspects: Least, median and largest width divided by height.
        common: The most frequent height and width.
        common_count: How many images have it.
        too_small: Images that are enlarged more than twofold when they are read.
        elongated: Images with one side more than twice the other, of which the centre crop cuts away over half.
    """

    shorter_sides: tuple[int, float, int]
    aspects: tuple[float, float, float]
    common: Size
    common_count: int
    too_small: int
    elongated: int


@dataclass(frozen=True)
class SetFindings:
    """One set of images, such as a folder or a split of it.

    Attributes:
        path: What to name in order to read it.
        split: Which split of the path it is; None if the path has none.
        layout: "class folders", "flat folder", "list", "npz", "shards", "cifar", "tiny-imagenet" or "image".
        images: Number of images that can be read.
        classes: How many of them each class has, in the order of the classes; empty without labels.
        decoded_bytes: Memory of all its images when they are decoded.
        streamed: Whether that is too much, so that images are decoded whenever they are needed.
    """

    path: str
    split: str | None
    layout: str
    images: int
    classes: dict[str, int]
    decoded_bytes: int
    streamed: bool


@dataclass(frozen=True)
class Findings:
    """What a check-up has found; images are equal if their pixels are at the size that they are read at.

    Attributes:
        path: What was looked at.
        layout: That of its only set, "split folders", "several sets", or "none" if there are no images.
        sets: The sets in it.
        problems: Sentences on what keeps a folder from being read as it is.
        images: Number of images that can be read.
        sizes: Their sizes, with those of damaged files whose header is sound; None without any.
        size: Side of the squares that files are read at, see `chosen_size`; None where there are no files.
        formats: How many images have each format, by Pillow's names; "array" for images that are no files.
        modes: How many images have each colour mode, by Pillow's names.
        turned: Images that EXIF turns or mirrors.
        damaged: Number of files that cannot be read.
        reasons: Why, for each of the first ten of them.
        other_files: How many files in the folders of images are none, by suffix.
        repeats: "within classes": images that repeat another one of their class, or of their set if it has no classes;
            "between classes": pictures that are in more than one class of a set; "between sets": pictures that are
            in more than one set, such as in train and test.
    """

    path: str
    layout: str
    sets: tuple[SetFindings, ...]
    problems: tuple[str, ...]
    images: int
    sizes: SizeFindings | None
    size: int | None
    formats: dict[str, int]
    modes: dict[str, int]
    turned: int
    damaged: int
    reasons: dict[str, str]
    other_files: dict[str, int]
    repeats: dict[str, Repeats]

    @property
    def usable(self) -> bool:
        """Whether there are images, and nothing has to be repaired first."""
        return self.images > 0 and self.damaged == 0 and not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return nested plain objects, one to one with the fields, and whether the images are usable."""
        return {**dataclasses.asdict(self), "usable": self.usable}


def chosen_size(sizes: Sequence[Size] | _Sizes) -> int:
    """Choose the side of the squares that images are read at: 32, 64, 96, 128, 160 or 224.

    It is the largest of these that enlarges an image of the median shorter side by at most a quarter, and 32 if none
    does. So images of 28 are read at 32, of 64 at 64, of 200 at 224, and large photographs at 224.

    Args:
        sizes: Height and width of each image, [N, 2].

    Raises:
        ValueError: There are none.
    """
    median = statistics.median(np.asarray(sizes).min(axis=1).tolist())
    return max((side for side in _SIDES if side <= _MOST_ENLARGEMENT * median), default=_SIDES[0])


def _unwatched(name: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


def examine(source: str, watch: Watch = _unwatched) -> Findings:
    """Look at all images of a source: at their headers first, then at their pixels, a few in memory at a time.

    A folder that cannot be read as one set is taken apart into the sets below it. Facts about pixels are kept in the
    cache folder, where training looks for them.

    Args:
        source: A path that `inlay.data.load` reads, a folder of such folders, or a pattern of tar shards.
        watch: Makes a context for a piece of work from its name; what the context gives is called now and then with
            the number of files done and the number of all files.

    Raises:
        InlayError: The source is missing or nothing that is understood.
    """
    problems: list[str] = []
    sets = _sets_in(source, problems)
    with watch("reading headers") as report:
        sizes, formats, modes, turned = _read_headers(sets, report)
    side = chosen_size(sizes) if len(sizes) and any(each.files for each in sets) else None
    with watch("reading images") as report:
        _read_pixels(sets, side or _SIDES[0], report)
    bad = [each.files[place] for each in sets for place in np.flatnonzero(~each.good).tolist()]
    return Findings(
        path=source,
        layout=_layout_of(sets),
        sets=tuple(each.findings(side or _SIDES[0]) for each in sets),
        problems=tuple(problems),
        images=sum(len(each.prints) for each in sets),
        sizes=_size_findings(sizes, side) if len(sizes) else None,
        size=side,
        formats=dict(formats.most_common()),
        modes=dict(modes.most_common()),
        turned=turned,
        damaged=len(bad),
        reasons={str(file): _reason(file) for file in bad[:_MOST_NAMED]},
        other_files=_other_files(sets),
        repeats=_repeats(sets),
    )


@dataclass
class _Set:
    """Images that are read together; which can be read, bool [N], and the fingerprints of those, uint64 [M]."""

    path: str
    split: str | None
    layout: str
    content: Listing | ImageSet
    good: npt.NDArray[np.bool_] = field(init=False)
    prints: npt.NDArray[np.uint64] = field(init=False)

    @property
    def files(self) -> tuple[ImageFile, ...]:
        return self.content.files if isinstance(self.content, Listing) else ()

    def name(self, place: int) -> str:
        return str(self.files[place]) if isinstance(self.content, Listing) else self.content.names[place]

    def good_labels(self) -> npt.NDArray[np.int64]:
        """The classes of the images that can be read, int64 [M]; all zero where there are none."""
        labels = self.content.labels
        return np.zeros(len(self.prints), np.int64) if labels is None else np.asarray(labels, np.int64)[self.good]

    def findings(self, side: int) -> SetFindings:
        content, count = self.content, len(self.prints)
        size = content.images.nbytes if isinstance(content, ImageSet) else count * _CHANNELS * side * side
        streamed = isinstance(content, Listing) and size > _SHARE_OF_MEMORY * available_memory()
        counts = np.bincount(self.good_labels(), minlength=len(content.class_names)).tolist()
        # Without labels all images were counted as one class, which has no name.
        classes = dict(zip(content.class_names, counts, strict=False))
        return SetFindings(self.path, self.split, self.layout, count, classes, size, streamed)


def _sets_in(source: str, problems: list[str]) -> list[_Set]:
    path = Path(source).expanduser()
    # What is no folder is refused in words here if it is missing, not understood or damaged as a whole.
    if not os.path.isdir(path) and not splits(source) and not path.exists():
        return [_Set(source, None, "shards", shards.read_pattern(source))]
    return _sets_at(path, problems, ())


def _sets_at(path: Path, problems: list[str], above: tuple[Path, ...]) -> list[_Set]:
    try:
        try:
            return _read(path)
        except InlayError as refusal:
            return _taken_apart(path, refusal, problems, (*above, path.resolve()))
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        problems.append(f"'{error.filename or path}' cannot be read ({reason}); make it readable or remove it.")
        return []


def _read(path: Path) -> list[_Set]:
    reader = next(each for each in READERS if each.recognises(path))
    offered = reader.splits(path)
    contents = [(split, reader.read(path, split)) for split in offered or ("train",)]
    layout = _OTHER_LAYOUTS.get(reader) or _IMAGE_FOLDERS[contents[0][1].labels is None]
    return [_Set(str(path), split if offered else None, layout, content) for split, content in contents]


def _taken_apart(path: Path, refusal: InlayError, problems: list[str], above: tuple[Path, ...]) -> list[_Set]:
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
        own = [_Set(str(path), None, "flat folder", Listing(tuple(images)))] if images else []
        return own + [each for folder in inner for each in _sets_at(folder, problems, above)]
    if images:
        problems.append(str(refusal))
    classes = [folder for folder in inner if image_files(folder)]
    empty = [folder for folder in inner if folder not in classes]
    problems += [f"The class folder '{each}' holds no images; put images into it or remove it." for each in empty]
    files = tuple(file for folder in classes for file in image_files(folder))
    labels = tuple(label for label, folder in enumerate(classes) for _ in image_files(folder))
    listing = Listing(files, labels, tuple(folder.name for folder in classes))
    return [_Set(str(path), None, "class folders", listing)] if files else []


def _read_headers(sets: list[_Set], report: Progress) -> tuple[_Sizes, Counter[str], Counter[str], int]:
    """Height and width of images, int32 [K, 2], how many have each format and mode, and how many EXIF turns."""
    files = [file for each in sets for file in each.files]
    sizes: _Sizes = np.zeros((len(files), 2), dtype=np.int32)
    turned = np.zeros(len(files), dtype=np.bool_)
    formats, modes = Counter[str](), Counter[str]()
    lock = threading.Lock()

    def note(first: int) -> None:
        for number in range(first, min(first + _FILES_PER_TASK, len(files))):
            try:
                with Image.open(_openable(files[number]), formats=_formats()) as image:
                    turn = image.getexif().get(ExifTags.Base.Orientation, 1)
                    sizes[number] = image.size if turn in (5, 6, 7, 8) else (image.height, image.width)
            except _DECODER_ERRORS:
                continue
            turned[number] = turn in range(2, 9)
            with lock:
                formats[image.format or "unknown"] += 1
                modes[image.mode] += 1

    starts = range(0, len(files), _FILES_PER_TASK)
    _in_parallel(note, starts, lambda done: report(min(done * _FILES_PER_TASK, len(files)), len(files)))
    sizes = sizes[sizes.min(axis=1) > 0]
    for images in (each.content for each in sets if isinstance(each.content, ImageSet)):
        formats["array"] += len(images)
        modes["L" if images.channels == 1 else "RGB"] += len(images)
        sizes = np.concatenate([sizes, np.tile(np.array(images.size, np.int32), (len(images), 1))])
    return sizes, formats, modes, int(turned.sum())


def _read_pixels(sets: list[_Set], side: int, report: Progress) -> None:
    total = sum(len(each.files) for each in sets)
    before = 0

    def tell(done: int, _: int) -> None:
        report(before + done, total)

    for each in sets:
        if isinstance(each.content, ImageSet):
            each.prints = np.array([int(digits, 16) for digits in each.content.fingerprints()], dtype=np.uint64)
            each.good = np.ones(len(each.prints), dtype=np.bool_)
            continue
        found = survey(each.files, (side, side), _CHANNELS, skip_bad=True, on_progress=tell)
        each.good, each.prints = found.good, found.fingerprints
        before += len(each.files)


def _reason(file: ImageFile) -> str:
    try:
        decode_image(file, _SIDES[0])
    except InlayError as error:
        return str(error.__cause__)
    return "it could not be read at first"


def _layout_of(sets: list[_Set]) -> str:
    if len({each.path for each in sets}) != 1:
        return "several sets" if sets else "none"
    return "split folders" if sets[0].split and sets[0].layout in _IMAGE_FOLDERS else sets[0].layout


def _size_findings(sizes: _Sizes, side: int | None) -> SizeFindings:
    shorter, longer = sizes.min(axis=1), sizes.max(axis=1)
    aspects = sizes[:, 1] / sizes[:, 0]
    kinds, counts = np.unique(sizes, axis=0, return_counts=True)
    height, width = kinds[counts.argmax()].tolist()
    return SizeFindings(
        shorter_sides=(int(shorter.min()), float(np.median(shorter)), int(shorter.max())),
        aspects=(float(aspects.min()), float(np.median(aspects)), float(aspects.max())),
        common=(height, width),
        common_count=int(counts.max()),
        too_small=0 if side is None else int((2 * shorter < side).sum()),
        elongated=int((longer > 2 * shorter).sum()),
    )


def _other_files(sets: list[_Set]) -> dict[str, int]:
    ours = [each for each in sets if each.layout in _IMAGE_FOLDERS]
    parents = {file.parent for each in ours for file in each.files if isinstance(file, Path)}
    holders = parents.union(Path(each.path) for each in ours)
    found = (file for folder in holders for file in folder.iterdir() if file.suffix.lower() not in IMAGE_SUFFIXES)
    suffixes = Counter(file.suffix.lower() for file in found if file.is_file() and not file.name.startswith("."))
    return dict(suffixes.most_common())


def _repeats(sets: list[_Set]) -> dict[str, Repeats]:
    if not sets:
        return {}
    prints = np.concatenate([each.prints for each in sets])
    owners = np.repeat(np.arange(len(sets)), [len(each.prints) for each in sets])
    places = np.concatenate([np.flatnonzero(each.good) for each in sets])
    labels = np.concatenate([each.good_labels() for each in sets])
    # Equal images are side by side in this order, those of a set together, and among them those of a class.
    order = np.lexsort((places, labels, owners, prints))
    same, same_owner, same_label = (values[order][1:] == values[order][:-1] for values in (prints, owners, labels))

    def pairs(where: npt.NDArray[np.bool_], pictures: bool) -> Repeats:
        firsts, seconds = order[:-1][where], order[1:][where]
        chosen = np.argsort(firsts, kind="stable")[:_MOST_NAMED]
        first, second = ([sets[owners[at]].name(places[at]) for at in ends[chosen]] for ends in (firsts, seconds))
        count = len(np.unique(prints[firsts])) if pictures else len(firsts)
        return Repeats(count, tuple(zip(first, second, strict=True)))

    return {
        "within classes": pairs(same & same_owner & same_label, pictures=False),
        "between classes": pairs(same & same_owner & ~same_label, pictures=True),
        "between sets": pairs(same & ~same_owner, pictures=True),
    }
