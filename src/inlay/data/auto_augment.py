"""AutoAugment: sub-policies found for CIFAR-10, drawn per image on the device of the images."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.data.draws import Draws
from inlay.data.luminance import luminance

__all__ = ["CIFAR10_POLICY", "Step", "auto_augmented"]

_GREY = 128 / 255
_LEVELS = 256
# Each range is cut into magnitudes 0 to 9.
_MAGNITUDES = 9


@dataclass(frozen=True)
class Step:
    """One change of an image.

    Attributes:
        operation: Name of the change.
        probability: How likely it is.
        magnitude: How strong it is, from 0 to 9.
    """

    operation: str
    probability: float
    magnitude: int

    @property
    def strength(self) -> float:
        """The magnitude in the unit of the operation: a part of a side, degrees, bits, levels, or a change of 1."""
        share = self.magnitude / _MAGNITUDES
        if self.operation == "posterize":
            return float(round(8 - 4 * share))
        if self.operation == "solarize":
            return _LEVELS * (1 - share)
        return _RANGES.get(self.operation, 0.0) * share


_RANGES: Mapping[str, float] = {
    "shear-y": 0.3,
    **dict.fromkeys(("translate-x", "translate-y"), 150 / 331),
    "rotate": 30.0,
    **dict.fromkeys(("colour", "contrast", "sharpness", "brightness"), 0.9),
}


CIFAR10_POLICY: tuple[tuple[Step, Step], ...] = (
    (Step("invert", 0.1, 7), Step("contrast", 0.2, 6)),
    (Step("rotate", 0.7, 2), Step("translate-x", 0.3, 9)),
    (Step("sharpness", 0.8, 1), Step("sharpness", 0.9, 3)),
    (Step("shear-y", 0.5, 8), Step("translate-y", 0.7, 9)),
    (Step("autocontrast", 0.5, 8), Step("equalize", 0.9, 2)),
    (Step("shear-y", 0.2, 7), Step("posterize", 0.3, 7)),
    (Step("colour", 0.4, 3), Step("brightness", 0.6, 7)),
    (Step("sharpness", 0.3, 9), Step("brightness", 0.7, 9)),
    (Step("equalize", 0.6, 5), Step("equalize", 0.5, 1)),
    (Step("contrast", 0.6, 7), Step("sharpness", 0.6, 5)),
    (Step("colour", 0.7, 7), Step("translate-x", 0.5, 8)),
    (Step("equalize", 0.3, 7), Step("autocontrast", 0.4, 8)),
    (Step("translate-y", 0.4, 3), Step("sharpness", 0.2, 6)),
    (Step("brightness", 0.9, 6), Step("colour", 0.2, 8)),
    (Step("solarize", 0.5, 2), Step("invert", 0.0, 3)),
    (Step("equalize", 0.2, 0), Step("autocontrast", 0.6, 0)),
    (Step("equalize", 0.2, 8), Step("equalize", 0.6, 4)),
    (Step("colour", 0.9, 9), Step("equalize", 0.6, 6)),
    (Step("autocontrast", 0.8, 4), Step("solarize", 0.2, 8)),
    (Step("brightness", 0.1, 3), Step("colour", 0.7, 0)),
    (Step("solarize", 0.4, 5), Step("autocontrast", 0.9, 3)),
    (Step("translate-y", 0.9, 9), Step("translate-y", 0.7, 9)),
    (Step("autocontrast", 0.9, 2), Step("solarize", 0.8, 3)),
    (Step("equalize", 0.8, 8), Step("invert", 0.1, 3)),
    (Step("translate-y", 0.7, 9), Step("autocontrast", 0.9, 1)),
)
"""Pairs of steps of Cubuk et al. (AutoAugment: Learning Augmentation Strategies from Data, CVPR 2019)."""


def auto_augmented(images: Tensor, draws: Draws, policy: Sequence[tuple[Step, Step]] = CIFAR10_POLICY) -> Tensor:
    """Draw one pair of steps for each image and take them, each with its probability.

    Operations are those of the paper, with its ranges: what leaves the image shows grey, shears keep the left edge in
    its place, translations are by whole pixels, and moves and changes of colour go either way. Unlike in the released
    code, rotated and sheared images are sampled bilinearly and values are not rounded to levels, save by "equalize"
    and "posterize".

    Args:
        images: Floats in 0..1, [B, 1 or 3, H, W].
        draws: Source of all draws, of B rows, on the device of the images.
        policy: The pairs.

    Returns:
        The views in 0..1, of the same shape and type.
    """
    pairs = draws.choice(len(policy))
    for steps in zip(*policy, strict=True):
        chances, signs = draws.uniform(0, 1), 1 - 2 * draws.choice(2)
        fires = chances < _looked_up([step.probability for step in steps], pairs)
        strengths = (_looked_up([step.strength for step in steps], pairs) * signs).to(images.dtype)[:, None, None, None]
        names = list(dict.fromkeys(step.operation for step in steps))
        kinds = _looked_up([float(names.index(step.operation)) for step in steps], pairs)
        changed = images
        for place, name in enumerate(names):
            chosen = (fires & (kinds == place))[:, None, None, None]
            changed = torch.where(chosen, _OPERATIONS[name](images, strengths), changed)
        images = changed
    return images


def _looked_up(numbers: Sequence[float], places: Tensor) -> Tensor:
    """The numbers at some places, int64 [B], as float32 [B]."""
    # Filled where they are needed: a copy of Python numbers from the host would make it wait for the device.
    return torch.cat([torch.full((1,), number, device=places.device) for number in numbers])[places]


# From images [B, C, H, W] and signed strengths [B, 1, 1, 1] to images; any strength must give numbers.


def _inverted(images: Tensor, _: Tensor) -> Tensor:
    return 1 - images


def _solarized(images: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(_level(images) < threshold.abs(), images, 1 - images)


def _posterized(images: Tensor, bits: Tensor) -> Tensor:
    step = torch.exp2(8 - bits.abs())
    return (_level(images) / step).floor() * step / (_LEVELS - 1)


def _autocontrasted(images: Tensor, _: Tensor) -> Tensor:
    least, most = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    reach = most - least
    return torch.where(reach > 0, (images - least) / torch.where(reach > 0, reach, 1), images)


def _equalized(images: Tensor, _: Tensor) -> Tensor:
    """Spread the levels of each channel evenly; the brightest level does not count for the width of the steps."""
    levels = _level(images).long().flatten(2)
    counts = levels.new_zeros(*levels.shape[:2], _LEVELS).scatter_add_(2, levels, torch.ones_like(levels))
    brightest = counts.gather(2, levels.amax(dim=2, keepdim=True))
    step = (levels.shape[2] - brightest) // (_LEVELS - 1)
    below = counts.cumsum(dim=2) - counts
    spread = ((below + step // 2) // step.clamp_min(1)).clamp_max(_LEVELS - 1)
    spread = spread.gather(2, levels).view(images.shape).to(images.dtype) / (_LEVELS - 1)
    return torch.where(step[..., None] > 0, spread, images)


def _coloured(images: Tensor, change: Tensor) -> Tensor:
    return _away_from(luminance(images), images, change)


def _contrasted(images: Tensor, change: Tensor) -> Tensor:
    return _away_from(luminance(images.mean(dim=(2, 3), keepdim=True)), images, change)


def _brightened(images: Tensor, change: Tensor) -> Tensor:
    return _away_from(torch.zeros_like(images), images, change)


def _sharpened(images: Tensor, change: Tensor) -> Tensor:
    """Move away from an image that is smoothed but for its outermost pixels."""
    smooth = images.clone()
    if min(images.shape[2:]) > 2:
        inner = images[:, :, 1:-1, 1:-1]
        smooth[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(images, 3, stride=1) + 4 * inner) / 13
    return _away_from(smooth, images, change)


def _away_from(other: Tensor, images: Tensor, change: Tensor) -> Tensor:
    return (other + (1 + change) * (images - other)).clamp(0, 1)


def _rotated(images: Tensor, degrees: Tensor) -> Tensor:
    x, y = _places(images)
    middle_x, middle_y = (images.shape[3] - 1) / 2, (images.shape[2] - 1) / 2
    angle = degrees[:, 0] * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    x, y = x - middle_x, y - middle_y
    return _sampled(images, cos * x - sin * y + middle_x, sin * x + cos * y + middle_y)


def _sheared_down(images: Tensor, slope: Tensor) -> Tensor:
    x, y = _places(images)
    return _sampled(images, x, y + slope[:, 0] * (x + 0.5))


def _translated_right(images: Tensor, share: Tensor) -> Tensor:
    x, y = _places(images)
    return _sampled(images, x + _whole(share[:, 0] * images.shape[3]), y)


def _translated_down(images: Tensor, share: Tensor) -> Tensor:
    x, y = _places(images)
    return _sampled(images, x, y + _whole(share[:, 0] * images.shape[2]))


def _places(images: Tensor) -> tuple[Tensor, Tensor]:
    """Columns [1, 1, W] and rows [1, H, 1] of the pixels."""
    height, width = images.shape[2:]
    x = torch.arange(width, dtype=images.dtype, device=images.device)
    y = torch.arange(height, dtype=images.dtype, device=images.device)
    return x[None, None], y[None, :, None]


def _sampled(images: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The images at some columns and rows, which broadcast to [B, H, W]; grey outside."""
    batch, _, height, width = images.shape
    across, down = (x * (2 / (width - 1)) - 1), (y * (2 / (height - 1)) - 1)
    grid = torch.stack([part.expand(batch, height, width) for part in (across, down)], dim=3)
    seen = F.grid_sample(images - _GREY, grid, mode="bilinear", padding_mode="zeros", align_corners=True)
    return (seen + _GREY).clamp(0, 1)


def _whole(pixels: Tensor) -> Tensor:
    return (pixels + 0.5).floor()


def _level(images: Tensor) -> Tensor:
    return (images * (_LEVELS - 1)).round()


_OPERATIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "invert": _inverted,
    "solarize": _solarized,
    "posterize": _posterized,
    "autocontrast": _autocontrasted,
    "equalize": _equalized,
    "colour": _coloured,
    "contrast": _contrasted,
    "brightness": _brightened,
    "sharpness": _sharpened,
    "rotate": _rotated,
    "shear-y": _sheared_down,
    "translate-x": _translated_right,
    "translate-y": _translated_down,
}
