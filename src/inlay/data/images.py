"""A set of images of one size, held in memory, with or without labels."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from inlay.data.arrays import Array, Labels, as_images, as_labels
from inlay.errors import InlayError

__all__ = ["ImageSet"]

_DIGEST_BYTES = 8


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
        if len(set(self.class_names)) != len(self.class_names):
            raise ValueError("class_names must be distinct")
        if self.labels is None:
            if self.class_names:
                raise ValueError("class_names without labels")
            return
        if self.labels.dtype != torch.int64 or self.labels.shape != (len(self.images),):
            raise ValueError(f"labels must be int64 [{len(self)}], not {self.labels.dtype} {list(self.labels.shape)}")
        if len(self) and not (self.labels.min() >= 0 and self.labels.max() < len(self.class_names)):
            raise ValueError("labels must be indices into class_names")

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
        chosen = torch.as_tensor(indices).cpu()
        if chosen.numel() == 0:
            chosen = chosen.long()
        if chosen.dtype == torch.bool and chosen.shape == (len(self),):
            chosen = chosen.nonzero().squeeze(1)
        if chosen.ndim != 1 or chosen.dtype == torch.bool or chosen.is_floating_point():
            raise ValueError(f"indices must be positions or {len(self)} truth values")
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
        if self.labels is None:
            raise InlayError(
                "Unlabelled images cannot be chosen by class; load a folder with one sub-folder per class."
            )
        wanted = tuple(names)
        unknown = next((name for name in wanted if name not in self.class_names), None)
        if unknown is not None:
            raise InlayError(f"There is no class '{unknown}'; write one of {', '.join(self.class_names)}.")
        if len(set(wanted)) != len(wanted):
            raise ValueError("names must be distinct")
        renumbered = torch.full((len(self.class_names),), -1, dtype=torch.int64)
        for number, name in enumerate(wanted):
            renumbered[self.class_names.index(name)] = number
        labels = renumbered[self.labels]
        kept = (labels >= 0).nonzero().squeeze(1)
        return ImageSet(self.images[kept], tuple(self.names[index] for index in kept.tolist()), labels[kept], wanted)

    def fingerprints(self) -> tuple[str, ...]:
        """Sixteen hexadecimal digits per image that depend on its shape and pixels alone."""
        return self._fingerprints

    @cached_property
    def _fingerprints(self) -> tuple[str, ...]:
        shape = str(list(self.images.shape[1:])).encode()
        pixels = self.images.cpu().contiguous().numpy()
        return tuple(_digest(shape, image.tobytes()) for image in pixels)

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits for the whole set: images in order, labels and class names."""
        labels = None if self.labels is None else self.labels.tolist()
        return _digest(json.dumps([self.fingerprints(), labels, self.class_names]).encode())


def _digest(*parts: bytes) -> str:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
