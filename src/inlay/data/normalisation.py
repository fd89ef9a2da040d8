"""Images shifted and scaled to the range that networks learn in."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Normalisation", "normalisation_of"]


@dataclass(frozen=True)
class Normalisation:
    """Shifts and scales each channel to a mean of 0 and a standard deviation of 1.

    Attributes:
        mean: Mean of each channel of images in 0..1.
        std: Standard deviation of each channel, above 0.

    Raises:
        ValueError: The two differ in length, or a deviation is not above 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(0 < value < math.inf for value in self.std):
            raise ValueError(f"mean and std must be as long as each other and std above 0; got {self}")

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise float images in 0..1, [B, C, H, W], to the same shape, type and memory format.

        Raises:
            ValueError: The images are not floats or have another number of channels.
        """
        if not images.is_floating_point() or images.ndim != 4 or images.shape[1] != len(self.mean):
            raise ValueError(f"images must be floats [B, {len(self.mean)}, H, W]; got {tuple(images.shape)}")
        mean, std = (_per_channel(values, images) for values in (self.mean, self.std))
        return (images - mean) / std


def _per_channel(values: tuple[float, ...], images: Tensor) -> Tensor:
    """Numbers in the type and on the device of images, [C, 1, 1]."""
    # Filled where they are needed: a copy of Python numbers from the host would make it wait for the device.
    return torch.cat([images.new_full((1, 1, 1), value) for value in values])


def normalisation_of(images: Tensor | Iterable[Tensor]) -> Normalisation:
    """Measure the mean and the standard deviation of each channel over all images and pixels.

    Args:
        images: Bytes, [N, C, H, W], or any number of such parts of the images, all of C channels.

    Returns:
        The figures for images in 0..1, computed in float64; a channel that never changes gets a deviation of
        1, so that normalising makes it 0 throughout.

    Raises:
        ValueError: The images are not bytes of this shape, or there are none.
    """
    parts = [images] if isinstance(images, Tensor) else images
    # Counts of the 256 levels say all there is to know without a float copy of the images.
    counts: Tensor | None = None
    for part in parts:
        found = _level_counts(part)
        if counts is not None and len(found) != len(counts):
            raise ValueError(f"all parts must have {len(counts)} channels; got {len(found)}")
        counts = found if counts is None else counts + found
    if counts is None or not counts.any():
        raise ValueError("there must be images to measure; got none")
    levels = torch.arange(256, dtype=torch.float64) / 255
    shares = counts.double() / counts[0].sum()
    mean = (shares * levels).sum(dim=1)
    std = (shares * (levels - mean[:, None]).square()).sum(dim=1).sqrt()
    constant = (shares == 1).any(dim=1)
    return Normalisation(tuple(mean.tolist()), tuple(std.masked_fill(constant, 1.0).tolist()))


def _level_counts(images: Tensor) -> Tensor:
    """How often each channel of bytes [N, C, H, W] takes each value, int64 [C, 256], on the host."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] == 0:
        raise ValueError(f"images must be uint8 [N, C, H, W]; got {images.dtype} {tuple(images.shape)}")
    channels = images.unbind(dim=1)
    return torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in channels]).cpu()
