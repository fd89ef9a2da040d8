"""Images shifted and scaled to the range that networks learn in."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Normalisation", "normalisation_of"]

_LEVELS = 256


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


def normalisation_of(counts: Tensor) -> Normalisation:
    """Return the mean and the standard deviation of each channel over all images and pixels.

    Args:
        counts: How often each channel takes each of its 256 values, [C, 256]; they say all there is to know.

    Returns:
        The figures for images in 0..1, computed in float64; a channel that never changes gets a deviation of
        1, so that normalising makes it 0 throughout.

    Raises:
        ValueError: The counts have another shape, or count nothing.
    """
    if counts.ndim != 2 or counts.shape[1] != _LEVELS or not counts.any():
        raise ValueError(f"counts must be [C, {_LEVELS}] and not all 0; got {tuple(counts.shape)}")
    levels = torch.arange(_LEVELS, dtype=torch.float64) / (_LEVELS - 1)
    shares = counts.double() / counts.sum(dim=1, keepdim=True)
    mean = (shares * levels).sum(dim=1)
    std = (shares * (levels - mean[:, None]).square()).sum(dim=1).sqrt()
    constant = (shares == 1).any(dim=1)
    return Normalisation(tuple(mean.tolist()), tuple(std.masked_fill(constant, 1.0).tolist()))
