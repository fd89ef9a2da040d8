"""Sets of images that stay on disk and are decoded whenever they are needed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inlay.data.decode import Progress, read_file
from inlay.data.images import PixelReader, fingerprint_of_set
from inlay.data.labelling import check_labels, chosen_classes, chosen_positions
from inlay.data.listing import ImageFile, Listing
from inlay.data.pixels import Size
from inlay.data.survey import survey

__all__ = ["FilePixels", "PixelReader", "StreamedSet"]


@dataclass(frozen=True, eq=False)
class FilePixels:
    """The pixels of image files.

    Attributes:
        files: The files in order.
        size: Height and width to scale and centre-crop to.
        channels: 1 for grey, 3 for RGB.
    """

    files: tuple[ImageFile, ...]
    size: Size
    channels: int

    def __len__(self) -> int:
        return len(self.files)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        return self.channels, *self.size

    def read(self, indices: Tensor) -> Tensor:
        """Decode some images: positions int64 [r] to uint8 [r, C, H, W].

        Raises:
            InlayError: A file is missing, damaged or no image.
        """
        pixels = np.empty((len(indices), *self.shape), dtype=np.uint8)
        for place, index in enumerate(indices.tolist()):
            pixels[place] = read_file(self.files[index], self.size, self.channels)
        return torch.from_numpy(pixels)


@dataclass(frozen=True, eq=False)
class StreamedSet:
    """Images of one size that are decoded from their files whenever they are needed; see `open_images`.

    Attributes:
        pixels: Reads the N images.
        prints: The fingerprint of each image as a number, uint64 [N].
        labels: int64 [N], each an index into `class_names`; None for unlabelled images.
        class_names: The distinct names of the classes in order; empty without labels.
        skipped: Names of files that were left out because they are damaged; selections of a set do not carry them
            on.
        counts: Level counts where they are known, int64 [C, 256].
        cache: Whether facts about the images are kept in the cache folder.

    Raises:
        ValueError: The parts do not fit each other.
    """

    pixels: FilePixels
    prints: npt.NDArray[np.uint64]
    labels: Tensor | None = None
    class_names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    counts: Tensor | None = None
    cache: bool = True

    def __post_init__(self) -> None:
        if self.prints.shape != (len(self),):
            raise ValueError(f"{len(self)} images but {len(self.prints)} fingerprints")
        check_labels(self.labels, self.class_names, len(self))

    @classmethod
    def from_listing(
        cls,
        listing: Listing,
        size: Size | None,
        channels: int,
        *,
        skip_bad: bool = False,
        cache: bool = True,
        on_progress: Progress | None = None,
    ) -> "StreamedSet":
        """Check the files of a listing, each once, and make a set of them.

        Args:
            listing: Files and labels.
            size: Height and width to scale and centre-crop to; None chooses one that suits the files.
            channels: 1 for grey, 3 for RGB.
            skip_bad: Leave damaged files out and name them in `skipped`.
            cache: Keep what was found out in the cache folder, so that files are checked once.
            on_progress: Called now and then with the number of files done and the number of all files.

        Raises:
            InlayError: A file is damaged and `skip_bad` is off, or nothing is left of the files or of a class.
        """
        files = listing.files
        found = survey(files, size, channels, skip_bad=skip_bad, cache=cache, on_progress=on_progress)
        left = listing.kept(found.good)
        return cls(
            FilePixels(left.files, found.size, channels),
            found.fingerprints,
            None if left.labels is None else torch.tensor(left.labels, dtype=torch.int64),
            left.class_names,
            skipped=tuple(str(files[number]) for number in np.flatnonzero(~found.good)),
            counts=torch.from_numpy(found.level_counts),
            cache=cache,
        )

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        classes = "unlabelled" if self.labels is None else f"{len(self.class_names)} classes"
        return f"StreamedSet({len(self)} images of {self.channels} x {self.size[0]} x {self.size[1]}, {classes})"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The path of each image, or its archive and its name there ("shard.tar#17.jpg")."""
        return tuple(str(file) for file in self.pixels.files)

    @property
    def size(self) -> Size:
        """Height and width of every image."""
        return self.pixels.size

    @property
    def channels(self) -> int:
        """Number of channels of every image."""
        return self.pixels.channels

    def listing(self) -> Listing:
        """The files and labels of the set, to read them in another way."""
        labels = None if self.labels is None else tuple(self.labels.tolist())
        return Listing(self.pixels.files, labels, self.class_names)

    def select(self, indices: Tensor | npt.NDArray[Any] | Sequence[int]) -> "StreamedSet":
        """Pick images by position, in the order given.

        Args:
            indices: Positions, or one truth value per image.

        Raises:
            ValueError: The indices are neither.
        """
        chosen = chosen_positions(indices, len(self))
        files = tuple(self.pixels.files[index] for index in chosen.tolist())
        return replace(
            self,
            pixels=replace(self.pixels, files=files),
            prints=self.prints[chosen.numpy()],
            labels=None if self.labels is None else self.labels[chosen],
            skipped=(),
            counts=None,
        )

    def without_labels(self) -> "StreamedSet":
        """The same images with no trace of their classes but the names of their files."""
        return replace(self, labels=None, class_names=())

    def of_classes(self, names: Sequence[str]) -> "StreamedSet":
        """Keep the images of some classes, in their present order.

        Args:
            names: The classes to keep; they become `class_names` in this order and the labels are renumbered.

        Raises:
            InlayError: The set has no labels or does not know a class.
            ValueError: A name occurs twice.
        """
        kept, labels = chosen_classes(self.labels, self.class_names, names)
        return replace(self.select(kept), labels=labels, class_names=tuple(names))

    def fingerprints(self) -> tuple[str, ...]:
        """Sixteen hexadecimal digits per image that depend on its shape and pixels alone."""
        return self._fingerprints

    @cached_property
    def _fingerprints(self) -> tuple[str, ...]:
        return tuple(f"{number:016x}" for number in self.prints.tolist())

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits for the whole set: images in order, labels and class names."""
        return fingerprint_of_set(self)

    def level_counts(self) -> Tensor:
        """How often each level occurs in each channel, over all images and pixels: int64 [C, 256].

        Raises:
            InlayError: This is a selection, so that its images are read for it, and one of them is damaged by now.
        """
        return self._level_counts

    @cached_property
    def _level_counts(self) -> Tensor:
        if self.counts is not None:
            return self.counts
        found = survey(self.pixels.files, self.size, self.channels, cache=self.cache)
        return torch.from_numpy(found.level_counts)
