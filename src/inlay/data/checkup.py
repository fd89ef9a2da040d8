"""A check-up of images before anything is learned from them: what is there, and what is broken."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from inlay.data.decode import Progress, decode_image, in_parallel
from inlay.data.findings import Findings, SizeFindings
from inlay.data.images import ImageSet
from inlay.data.imagesets import CHANNELS, IMAGE_FOLDERS, FoundSet, find_sets
from inlay.data.listing import IMAGE_SUFFIXES, ImageFile
from inlay.data.opening import read_header
from inlay.data.pixels import Size
from inlay.data.repeats import find_repeats
from inlay.data.sides import chosen_size
from inlay.data.survey import survey
from inlay.errors import InlayError

__all__ = ["Watch", "examine"]

Watch: TypeAlias = Callable[[str], AbstractContextManager[Progress]]
_Sizes: TypeAlias = npt.NDArray[np.int32]

_MOST_NAMED = 10
_FILES_PER_TASK = 32
_ANY_SIZE = (32, 32)


def _unwatched(name: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


def examine(source: str, watch: Watch = _unwatched, read_at: Callable[[Size], Size] = lambda size: size) -> Findings:
    """Look at all images of a source: at their headers first, then at their pixels, a few in memory at a time.

    A folder that cannot be read as one set is taken apart into the sets below it. Facts about pixels are kept in the
    cache folder, where training looks for them.

    Args:
        source: A path that `inlay.data.load` reads, a folder of such folders, or a pattern of tar shards.
        watch: Makes a context for a piece of work from its name; what the context gives is called now and then with
            the number of files done and the number of all files.
        read_at: Height and width that a run reads the images at, from those that suit them.

    Raises:
        InlayError: The source is missing or nothing that is understood.
    """
    problems: list[str] = []
    sets = find_sets(source, problems)
    with watch("reading headers") as report:
        headers = _read_headers(sets, report)
    sizes = np.concatenate([headers.sizes, *_array_sizes(sets)])
    suiting = chosen_size(headers.deciding(sets)) if len(headers.sizes) else None
    size = None if suiting is None else read_at(suiting)
    with watch("reading images") as report:
        _read_pixels(sets, size or _ANY_SIZE, report)
    bad = [each.files[place] for each in sets for place in np.flatnonzero(~each.good).tolist()]
    return Findings(
        path=source,
        layout=_layout_of(sets),
        sets=tuple(each.findings(size or _ANY_SIZE) for each in sets),
        problems=tuple(problems),
        images=sum(len(each.prints) for each in sets),
        sizes=_size_findings(sizes, suiting) if len(sizes) else None,
        size=size,
        formats=dict(headers.formats.most_common()),
        modes=dict(headers.modes.most_common()),
        turned=headers.turned,
        damaged=len(bad),
        reasons={str(file): _reason(file) for file in bad[:_MOST_NAMED]},
        other_files=_other_files(sets),
        repeats=find_repeats(sets),
    )


@dataclass(frozen=True)
class _Headers:
    """Height and width of the files that can be opened, int32 [K, 2], and the set of each, [K]; and counts of all."""

    sizes: _Sizes
    owners: npt.NDArray[np.int64]
    formats: Counter[str]
    modes: Counter[str]
    turned: int

    def deciding(self, sets: Sequence[FoundSet]) -> _Sizes:
        """The sizes of the files that a run begins with: the labelled ones, of the training split; else of all."""
        first = [number for number, each in enumerate(sets) if each.content.labels is not None and each.split != "test"]
        chosen = self.sizes[np.isin(self.owners, first)]
        return chosen if len(chosen) else self.sizes


def _read_headers(sets: Sequence[FoundSet], report: Progress) -> _Headers:
    files = [file for each in sets for file in each.files]
    owners = np.repeat(np.arange(len(sets)), [len(each.files) for each in sets])
    sizes: _Sizes = np.zeros((len(files), 2), dtype=np.int32)
    formats, modes, turned = Counter[str](), Counter[str](), Counter[bool]()
    lock = threading.Lock()

    def note(first: int) -> None:
        for number in range(first, min(first + _FILES_PER_TASK, len(files))):
            header = read_header(files[number])
            if header is None:
                continue
            sizes[number] = header.size
            with lock:
                formats[header.format] += 1
                modes[header.mode] += 1
                turned[header.turned] += 1

    starts = range(0, len(files), _FILES_PER_TASK)
    in_parallel(note, starts, lambda done: report(min(done * _FILES_PER_TASK, len(files)), len(files)))
    for images in (each.content for each in sets if isinstance(each.content, ImageSet)):
        formats["array"] += len(images)
        modes["L" if images.channels == 1 else "RGB"] += len(images)
    opened = sizes.min(axis=1) > 0
    return _Headers(sizes[opened], owners[opened], formats, modes, turned[True])


def _array_sizes(sets: Sequence[FoundSet]) -> Iterator[_Sizes]:
    for images in (each.content for each in sets if isinstance(each.content, ImageSet)):
        yield np.tile(np.array(images.size, np.int32), (len(images), 1))


def _read_pixels(sets: Sequence[FoundSet], size: Size, report: Progress) -> None:
    total = sum(len(each.files) for each in sets)
    before = 0

    def tell(done: int, _: int) -> None:
        report(before + done, total)

    for each in sets:
        if isinstance(each.content, ImageSet):
            each.prints = np.array([int(digits, 16) for digits in each.content.fingerprints()], dtype=np.uint64)
            each.good = np.ones(len(each.prints), dtype=np.bool_)
            continue
        found = survey(each.files, size, CHANNELS, skip_bad=True, on_progress=tell)
        each.good, each.prints = found.good, found.fingerprints
        before += len(each.files)


def _reason(file: ImageFile) -> str:
    try:
        decode_image(file, _ANY_SIZE)
    except InlayError as error:
        return str(error.__cause__)
    return "it could not be read at first"


def _layout_of(sets: Sequence[FoundSet]) -> str:
    if len({each.path for each in sets}) != 1:
        return "several sets" if sets else "none"
    return "split folders" if sets[0].split and sets[0].layout in IMAGE_FOLDERS else sets[0].layout


def _size_findings(sizes: _Sizes, size: Size | None) -> SizeFindings:
    shorter, longer = sizes.min(axis=1), sizes.max(axis=1)
    aspects = sizes[:, 1] / sizes[:, 0]
    kinds, counts = np.unique(sizes, axis=0, return_counts=True)
    height, width = kinds[counts.argmax()].tolist()
    return SizeFindings(
        shorter_sides=(int(shorter.min()), float(np.median(shorter)), int(shorter.max())),
        aspects=(float(aspects.min()), float(np.median(aspects)), float(aspects.max())),
        common=(height, width),
        common_count=int(counts.max()),
        too_small=0 if size is None else int((2 * shorter < min(size)).sum()),
        elongated=int((longer > 2 * shorter).sum()),
    )


def _other_files(sets: Sequence[FoundSet]) -> dict[str, int]:
    ours = [each for each in sets if each.layout in IMAGE_FOLDERS]
    parents = {file.parent for each in ours for file in each.files if isinstance(file, Path)}
    holders = parents.union(Path(each.path) for each in ours)
    found = (file for folder in holders for file in folder.iterdir() if file.suffix.lower() not in IMAGE_SUFFIXES)
    suffixes = Counter(file.suffix.lower() for file in found if file.is_file() and not file.name.startswith("."))
    return dict(suffixes.most_common())
