"""Sets of images of one size, with or without labels: what any set offers, and the set that is held in memory."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inlay.data.arrays import Array, Labels, as_images, as_labels
from inlay.data.labelling import check_labels, chosen_classes, chosen_positions
from inlay.errors import InlayError

__all__ = ["ImageSet", "Images", "PixelReader", "fingerprint_of", "fingerprint_of_set"]

_DIGEST_BYTES = 8
_LEVELS = 256
_IMAGES_PER_COUNT = 1024


class PixelReader(Protocol):
    """Reads the pixels of any images of a set; threads may read at the same time."""

    def __len__(self) -> int:
        """The number of images."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        ...

    def read(self, indices: Tensor) -> Tensor:
        """Read some images.

        Args:
            indices: Their positions in order, int64 [r], on the CPU.

        Returns:
            uint8 [r, C, H, W] on the CPU.

        Raises:
            InlayError: An image cannot be read.
        """
        ...


class Images(Protocol):
    """A set of images of one size, wherever its pixels are."""

    def __len__(self) -> int:
        """The number of images."""
        ...

    @property
    def pixels(self) -> Tensor | PixelReader:
        """The pixels, uint8 [N, C, H, W], or who reads them."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Where each image came from."""
        ...

    @property
    def labels(self) -> Tensor | None:
        """int64 [N], each an index into `class_names`; None for unlabelled images."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """The distinct names of the classes in order; empty without labels."""
        ...

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of files that were left out because they are damaged."""
        ...

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every image."""
        ...

    @property
    def channels(self) -> int:
        """Number of channels of every image."""
        ...

    def select(self, indices: Tensor | npt.NDArray[Any] | Sequence[int]) -> Self:
        """Pick images by position or by truth value, in the order given."""
        ...

    def without_labels(self) -> Self:
        """The same images with no trace of their classes but the names of their files."""
        ...

    def of_classes(self, names: Sequence[str]) -> Self:
        """Keep the images of some classes, which become `class_names` in this order."""
        ...

    def fingerprints(self) -> tuple[str, ...]:
        """Sixteen hexadecimal digits per image that depend on its shape and pixels alone."""
        ...

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits for the whole set: images in order, labels and class names."""
        ...

    def level_counts(self) -> Tensor:
        """How often each level occurs in each channel, over all images and pixels: int64 [C, 256]."""
        ...


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of one size with their origins and, if known, their classes.

    Attributes:
        images: Pixels, uint8 [N, C, H, W].
        names: Where each of the N images came from: a path, or a file and a position ("digits.npz#17").
        labels: int64 [N], each an index into `class_names`; None for unlabelled images.
        class_names: The distinct names of the classes in order; empty without labels.
        skipped: Names of files that were left out while reading because they are damaged; selections of a
            set do not carry them on.

    Raises:
        ValueError: The parts do not fit each other.
    """

    images: Tensor
    names: tuple[str, ...]
    labels: Tensor | None = None
    class_names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(f"images must be uint8 [N, C, H, W], not {self.images.dtype} {list(self.images.shape)}")
        if len(self.names) != len(self.images):
            raise ValueError(f"{len(self.images)} images but {len(self.names)} names")
        check_labels(self.labels, self.class_names, len(self))

    @classmethod
    def from_arrays(
        cls,
        images: Array,
        labels: Labels | None = None,
        class_names: Sequence[str] | None = None,
        *,
        origin: str = "array",
    ) -> "ImageSet":
        """Build a set from plain arrays.

        Args:
            images: numpy or torch, [N, H, W], [N, H, W, C] or [N, C, H, W]; uint8, or floats in 0..1.
            labels: One integer or string per image, or None.
            class_names: Names in order of the integer labels; by default the sorted distinct labels.
            origin: What the images are called: image 17 of "array" is named "array#17".

        Raises:
            InlayError: The arrays cannot be read as images and labels.
        """
        pixels = as_images(images, origin)
        names = tuple(f"{origin}#{number}" for number in range(len(pixels)))
        if labels is None:
            return cls(pixels, names)
        indices, known = as_labels(labels, class_names, origin)
        if len(indices) != len(pixels):
            raise InlayError(
                f"There are {len(pixels)} images but {len(indices)} labels in {origin}; pass one per image."
            )
        return cls(pixels, names, indices, known)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        classes = "unlabelled" if self.labels is None else f"{len(self.class_names)} classes"
        return f"ImageSet({len(self)} images of {self.channels} x {self.size[0]} x {self.size[1]}, {classes})"

    @property
    def pixels(self) -> Tensor:
        """The images themselves, uint8 [N, C, H, W]."""
        return self.images

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every image."""
        return self.images.shape[2], self.images.shape[3]

    @property
    def channels(self) -> int:
        """Number of channels of every image."""
        return self.images.shape[1]

    def select(self, indices: Tensor | npt.NDArray[Any] | Sequence[int]) -> "ImageSet":
        """Pick images by position, in the order given.

        Args:
            indices: Positions, or one truth value per image.

        Raises:
            ValueError: The indices are neither.
        """
        chosen = chosen_positions(indices, len(self))
        return replace(
            self,
            images=self.images[chosen],
            names=tuple(self.names[index] for index in chosen.tolist()),
            labels=None if self.labels is None else self.labels[chosen],
            skipped=(),
        )

    def without_labels(self) -> "ImageSet":
        """The same images with no trace of their classes but the names of their files."""
        return replace(self, labels=None, class_names=())

    def of_classes(self, names: Sequence[str]) -> "ImageSet":
        """Keep the images of some classes, in their present order.

        Args:
            names: The classes to keep; they become `class_names` in this order and the labels are renumbered.

        Raises:
            InlayError: The set has no labels or does not know a class.
            ValueError: A name occurs twice.
        """
        kept, labels = chosen_classes(self.labels, self.class_names, names)
        chosen = tuple(self.names[index] for index in kept.tolist())
        return ImageSet(self.images[kept], chosen, labels, tuple(names))

    def fingerprints(self) -> tuple[str, ...]:
        """Sixteen hexadecimal digits per image that depend on its shape and pixels alone."""
        return self._fingerprints

    @cached_property
    def _fingerprints(self) -> tuple[str, ...]:
        return tuple(fingerprint_of(image) for image in self.images.cpu().contiguous().numpy())

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits for the whole set: images in order, labels and class names."""
        return fingerprint_of_set(self)

    def level_counts(self) -> Tensor:
        """How often each level occurs in each channel, over all images and pixels: int64 [C, 256], on the CPU."""
        total = torch.zeros(self.channels, _LEVELS, dtype=torch.int64)
        # A few images at a time, because the channels of all would be one more copy of them.
        for images in torch.split(self.images, _IMAGES_PER_COUNT):
            counts = [torch.bincount(channel.flatten(), minlength=_LEVELS) for channel in images.unbind(dim=1)]
            total += torch.stack(counts).cpu()
        return total


def fingerprint_of(pixels: npt.NDArray[np.uint8]) -> str:
    """Sixteen hexadecimal digits of one image, uint8 [C, H, W], from its shape and pixels alone."""
    return _digest(str(list(pixels.shape)).encode(), pixels.tobytes())


def fingerprint_of_set(images: Images) -> str:
    """Sixteen hexadecimal digits of a set, from its images in order, labels and class names."""
    labels = None if images.labels is None else images.labels.tolist()
    return _digest(json.dumps([images.fingerprints(), labels, images.class_names]).encode())


def _digest(*parts: bytes) -> str:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
