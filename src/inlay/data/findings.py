"""What a check-up of images has found."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from inlay.data.pixels import Size

__all__ = ["Findings", "Repeats", "SetFindings", "SizeFindings"]


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
        layout: "class folders", "flat folder", "list", "npz", "shards", "cifar", "tiny-imagenet" or "image"; or the
            words of a reader that was added.
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
        size: Height and width that files are read at, see `chosen_size`: labelled ones have the say, as in a run, and
            others where there are none; None where there are no files.
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
    size: Size | None
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
