"""Random views of whole batches of images, drawn per image on the device of the images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.data.auto_augment import auto_augmented
from inlay.data.draws import Draws
from inlay.data.luminance import luminance
from inlay.errors import InlayError

__all__ = ["VIEWS", "Augmentation", "Fill", "augmentation"]

Fill = Literal["zero", "reflect"]

_ASPECTS = (3 / 4, 4 / 3)
_CROP_ATTEMPTS = 10
_SIGMAS = (0.1, 2.0)

# The largest value of each field that `scaled` multiplies.
_LIMITS: Mapping[str, float] = {
    **dict.fromkeys(("flip", "jitter_probability", "grey", "blur", "auto"), 1.0),
    **dict.fromkeys(("rotate", "scale", "shear", "translate"), math.inf),
    **dict.fromkeys(("brightness", "contrast", "saturation"), math.inf),
    "hue": 0.5,
}


@dataclass(frozen=True)
class Augmentation:
    """Random changes of images; the defaults change nothing.

    Colour changes follow the geometric ones, in the order of the fields. Saturation, hue and grey do nothing
    to images of one channel.

    Attributes:
        shift: Largest translation in whole pixels along each axis: the random crop of a padded image.
        fill: What lies outside the image: "zero", or "reflect" for its mirror image about the edge pixels.
        flip: Probability of a horizontal flip.
        crop: Smallest and largest area, as parts of the image, of a random box that is scaled up to the full
            size; its aspect ratio is from 3/4 to 4/3. None takes the whole image.
        rotate: Largest angle in degrees, either way.
        scale: Largest natural logarithm of the factor along each axis, either way.
        shear: Largest horizontal shift per unit of height, either way.
        translate: Largest translation along each axis as a part of the side.
        brightness: Largest change of the factor 1 on all values.
        contrast: Largest change of the factor 1 on the distance from the mean luminance.
        saturation: Largest change of the factor 1 on the distance from grey.
        hue: Largest change of hue in turns, at most 0.5.
        jitter_probability: Probability of the changes of brightness, contrast, saturation and hue together.
        grey: Probability that all channels become the luminance.
        blur: Probability of a Gaussian blur with a standard deviation from 0.1 to 2 pixels; the kernel covers
            about a tenth of the side and at least 3 pixels.
        auto: Probability of a pair of steps of AutoAugment for CIFAR-10; see `auto_augmented`.
        cutout: Side in pixels of a black square about a random pixel, cut off at the edges of the image (Cutout:
            DeVries and Taylor, 2017).

    Raises:
        ValueError: A field is outside its range.
    """

    shift: int = 0
    fill: Fill = "zero"
    flip: float = 0.0
    crop: tuple[float, float] | None = None
    rotate: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    translate: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    jitter_probability: float = 1.0
    grey: float = 0.0
    blur: float = 0.0
    auto: float = 0.0
    cutout: int = 0

    def __post_init__(self) -> None:
        for name in ("shift", "cutout"):
            pixels = getattr(self, name)
            if not isinstance(pixels, int) or pixels < 0:
                raise ValueError(f"{name} must be a whole number from 0; got {pixels}")
        if self.fill not in ("zero", "reflect"):
            raise ValueError(f"fill must be 'zero' or 'reflect'; got {self.fill!r}")
        if self.crop is not None and not 0 < self.crop[0] <= self.crop[1] <= 1:
            raise ValueError(f"crop must be two rising areas above 0 and up to 1; got {self.crop}")
        for name, limit in _LIMITS.items():
            value = getattr(self, name)
            if not 0 <= value <= limit or math.isinf(value):
                raise ValueError(f"{name} must be finite and lie in 0..{limit}; got {value}")

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        """Draw one view of each image.

        Args:
            images: Bytes, or floats in 0..1, [B, C, H, W] with 1 or 3 channels and sides of 2 pixels or more.
            draws: Source of all draws, of B rows, on the device of the images.

        Returns:
            The views in 0..1, [B, C, H, W], float32, or float64 if the images are; channels last in memory if
            there is more than one.

        Raises:
            ValueError: The images have another shape or type.
        """
        _check(images)
        if self._affine or self.crop is not None:
            values = _sampled(_as_floats(images), draws, self)
        elif self.shift or self.flip:
            values = _as_floats(_gathered(images, draws, self))
        else:
            values = _as_floats(images)
        if self.brightness or self.contrast or self.saturation or self.hue:
            chosen = _chosen(draws, self.jitter_probability, values)
            values = _blended(_jittered(values, draws, self), values, chosen)
        if self.grey:
            values = _blended(values, luminance(values), 1 - _chosen(draws, self.grey, values))
        if self.blur:
            chosen = _chosen(draws, self.blur, values)
            values = _blended(_blurred(values, draws.uniform(*_SIGMAS).to(values.dtype)), values, chosen)
        if self.auto:
            values = _blended(auto_augmented(values, draws), values, _chosen(draws, self.auto, values))
        if self.cutout:
            values = _cut_out(values, draws, self.cutout)
        layout = torch.channels_last if values.shape[1] > 1 else torch.contiguous_format
        return values.contiguous(memory_format=layout)

    def scaled(self, strength: float) -> Augmentation:
        """A weaker version: all ranges and probabilities times a factor, `shift` and `cutout` rounded.

        The areas of `crop` move towards the whole image.

        Args:
            strength: The factor, 0 for no change of the images to 1 for this very augmentation.

        Raises:
            ValueError: The strength is outside 0..1.
        """
        if not 0 <= strength <= 1:
            raise ValueError(f"strength must lie in 0..1; got {strength}")
        factors = {name: getattr(self, name) * strength for name in _LIMITS}
        crop = None
        if self.crop is not None and strength > 0:
            crop = (1 - strength + strength * self.crop[0], 1 - strength + strength * self.crop[1])
        pixels = {name: round(getattr(self, name) * strength) for name in ("shift", "cutout")}
        return replace(self, crop=crop, **pixels, **factors)

    @property
    def _affine(self) -> bool:
        return any((self.rotate, self.scale, self.shear, self.translate))


def _check(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] not in (1, 3) or min(images.shape[2:]) < 2:
        raise ValueError(f"images must be [B, 1 or 3, H, W], H and W from 2; got {tuple(images.shape)}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(f"images must be uint8 or floats in 0..1; got {images.dtype}")


def _as_floats(images: Tensor) -> Tensor:
    if images.dtype == torch.uint8:
        return images.float().div_(255)
    return images.to(torch.promote_types(images.dtype, torch.float32))


def _within(draws: Draws, reach: float, like: Tensor, *shape: int) -> Tensor:
    """Numbers from -reach to reach in the type of a tensor, [B, *shape]."""
    return draws.uniform(-reach, reach, *shape).to(like.dtype)


def _chosen(draws: Draws, probability: float, images: Tensor) -> Tensor:
    """1 for images that are chosen with some probability and 0 for others, [B, 1, 1, 1]."""
    return draws.chance(probability)[:, None, None, None].to(images.dtype)


def _blended(images: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Mix images with something; a share [B, 1, 1, 1] of 1 gives the images and of 0 the other, bit for bit."""
    # On a CPU this is far faster than a choice by truth values, and it makes one large tensor only.
    return (images * share).addcmul_(other, 1 - share)


def _gathered(images: Tensor, draws: Draws, settings: Augmentation) -> Tensor:
    """Shift and flip by whole pixels, so that every value is one of the image or a zero."""
    height, width = images.shape[2:]
    right, down = draws.whole(settings.shift, 2, 1).unbind(dim=1)
    columns = torch.arange(width, device=images.device)
    mirror = draws.chance(settings.flip)[:, None]
    columns = torch.where(mirror, width - 1 - columns, columns) + right
    rows = torch.arange(height, device=images.device) + down
    if settings.fill == "reflect":
        return _picked(images, _mirrored(rows, height), _mirrored(columns, width))
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
    return _picked(images, rows.clamp(0, height - 1), columns.clamp(0, width - 1)) * inside[:, None]


def _picked(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels of each image [B, C, H, W] in its own rows [B, H] and columns [B, W]."""
    batch, channels, height, width = images.shape
    places = (width * rows[:, :, None] + columns[:, None]).view(batch, 1, height * width)
    return images.flatten(2).gather(2, places.expand(-1, channels, -1)).view(images.shape)


def _mirrored(positions: Tensor, side: int) -> Tensor:
    """Fold positions beyond the edge pixels 0 and side - 1 back in."""
    period = 2 * (side - 1)
    folded = positions % period
    return torch.minimum(folded, period - folded)


def _sampled(images: Tensor, draws: Draws, settings: Augmentation) -> Tensor:
    """Crop, flip and map affinely in one bilinear sampling."""
    height, width = images.shape[2:]
    # Positions in pixels from the centre, [B, 1, W] and [B, H, 1] as long as neither depends on the other.
    x, y = (torch.arange(side, dtype=images.dtype, device=images.device) - (side - 1) / 2 for side in (width, height))
    mirror = 1 - 2 * draws.chance(settings.flip).to(images.dtype)
    x, y = mirror[:, None, None] * x, y[:, None]
    if settings.shift or settings.translate:
        steps = draws.whole(settings.shift, 2, 1, 1)
        moves = _within(draws, settings.translate, images, 2, 1, 1)
        x = x - moves[:, 0] * width - steps[:, 0]
        y = y - moves[:, 1] * height - steps[:, 1]
    if settings.rotate or settings.scale or settings.shear:
        x, y = _unwarped(x, y, draws, settings)
    if settings.crop is not None:
        across, along = _zooms(draws, height / width, settings.crop, images)
        centres = _within(draws, 0.5, images, 2, 1, 1)
        x = across * x + centres[:, 0] * (1 - across) * width
        y = along * y + centres[:, 1] * (1 - along) * height
    padding = "reflection" if settings.fill == "reflect" else "zeros"
    if not (settings._affine or settings.shift):
        # A box reaches half a pixel past the outermost centres, yet it never leaves the image.
        padding = "border"
    shape = (len(images), height, width)
    grid = torch.stack([(x * (2 / (width - 1))).expand(shape), (y * (2 / (height - 1))).expand(shape)], dim=3)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=True)


def _unwarped(x: Tensor, y: Tensor, draws: Draws, settings: Augmentation) -> tuple[Tensor, Tensor]:
    """Undo a drawn stretching, then shearing, then rotating of positions to the right and down, [B, H, W] each."""
    angle = torch.deg2rad(_within(draws, settings.rotate, x, 1, 1))
    shear = _within(draws, settings.shear, x, 1, 1)
    shrink = torch.exp(_within(draws, settings.scale, x, 2, 1, 1))
    # Written out, as a matrix product may run in a reduced precision that is too coarse for positions.
    cos, sin = angle.cos(), angle.sin()
    x, y = cos * x - sin * y, sin * x + cos * y
    return shrink[:, 0] * (x - shear * y), shrink[:, 1] * y


def _zooms(draws: Draws, slenderness: float, areas: tuple[float, float], like: Tensor) -> tuple[Tensor, Tensor]:
    """Draw the width and height of boxes as parts of those of an image with this height per width, [B, 1, 1] each.

    The first of several attempts that fits is taken; if none does, the largest box with an allowed aspect.
    """
    low, high = (ratio * slenderness for ratio in _ASPECTS)
    area = draws.uniform(*areas, _CROP_ATTEMPTS).to(like.dtype)
    ratio = torch.exp(draws.uniform(math.log(low), math.log(high), _CROP_ATTEMPTS).to(like.dtype))
    across, along = (area * ratio).sqrt(), (area / ratio).sqrt()
    fits = torch.maximum(across, along) <= 1
    first = fits.int().argmax(dim=1, keepdim=True)
    none = ~fits.gather(1, first)
    nearest = min(max(1.0, low), high)
    across = across.gather(1, first).masked_fill(none, min(1.0, nearest))
    along = along.gather(1, first).masked_fill(none, min(1.0, 1 / nearest))
    return across[:, None], along[:, None]


def _jittered(images: Tensor, draws: Draws, settings: Augmentation) -> Tensor:
    def factor(reach: float) -> Tensor:
        return draws.uniform(max(0.0, 1 - reach), 1 + reach, 1, 1, 1).to(images.dtype)

    values = images
    if settings.brightness:
        values = (values * factor(settings.brightness)).clamp_(0, 1)
    if settings.contrast:
        mean = luminance(values.mean(dim=(2, 3), keepdim=True))
        values = _blended(values, mean, factor(settings.contrast)).clamp_(0, 1)
    if settings.saturation:
        values = _blended(values, luminance(values), factor(settings.saturation)).clamp_(0, 1)
    if settings.hue and values.shape[1] == 3:
        values = _turned_hue(values, _within(draws, settings.hue, values))
    return values


def _turned_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of each image [B, 3, H, W] in 0..1 by some turns [B], at constant value and saturation."""
    red, green, blue = images.unbind(dim=1)
    value = torch.maximum(torch.maximum(red, green), blue)
    least = torch.minimum(torch.minimum(red, green), blue)
    chroma = value - least
    # The way from red along the six edges of the colour circle, towards green if positive, in sixths of a turn.
    # Without a branch: of red, green and blue over the least, in units of chroma, one is 0 and one is 1.
    way = (chroma - least).add_(green).add_(blue).sub_(red).div_(chroma.clamp_min(torch.finfo(images.dtype).tiny))
    hue = way.copysign_(green - blue).add_(6 * turns[:, None, None])
    hue = hue.sub_((hue / 6).floor_(), alpha=6)
    drops = ((hue - 3).abs_().neg_().add_(2), (hue - 2).abs_().sub_(1), (hue - 4).abs_().sub_(1))
    return torch.stack([torch.addcmul(value, chroma, drop.clamp_(0, 1), value=-1) for drop in drops], dim=1)


def _blurred(images: Tensor, sigmas: Tensor) -> Tensor:
    """Blur each image [B, C, H, W] with its own Gaussian [B]; the borders are mirrored."""
    reach = max(3, int(0.1 * min(images.shape[2:])) | 1) // 2
    steps = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    weights = torch.softmax(-0.5 * (steps / sigmas[:, None]).square(), dim=1)[:, :, None, None, None]
    for dim, margins in ((2, (0, 0, reach, reach)), (3, (reach, reach, 0, 0))):
        padded = F.pad(images, margins, mode="reflect")
        images = torch.zeros_like(images)
        for tap in range(2 * reach + 1):
            images = images + weights[:, tap] * padded.narrow(dim, tap, images.shape[dim])
    return images


def _cut_out(images: Tensor, draws: Draws, side: int) -> Tensor:
    """Blacken a square of each image; of two middle pixels the lower right one is drawn."""
    outside = []
    for dim in (2, 3):
        places = torch.arange(images.shape[dim], device=images.device)
        away = places - draws.choice(images.shape[dim], 1)
        outside.append((away < -(side // 2)) | (away >= side - side // 2))
    return images * (outside[0][:, None, :, None] | outside[1][:, None, None])


# The protocol takes "weak" for CIFAR-100 and base stages, "weak-reflect" for new classes of CIFAR-10 and
# "weak-crop" for Tiny-ImageNet; "weak-bright" is that of PODNet and its kin, "weak-auto" that of FOSTER, "weak-policy"
# comes near to that of DyTox. "strong" is SimCLR's; "glyph" suits signs that a mirror would change.
VIEWS: Mapping[str, Augmentation] = {
    "none": Augmentation(),
    "weak": Augmentation(shift=4, flip=0.5),
    "weak-reflect": Augmentation(shift=4, fill="reflect", flip=0.5),
    "weak-crop": Augmentation(crop=(0.5, 1.0), flip=0.5),
    "weak-bright": Augmentation(shift=4, flip=0.5, brightness=63 / 255),
    "weak-policy": Augmentation(shift=4, flip=0.5, auto=1.0),
    "weak-crop-policy": Augmentation(crop=(0.5, 1.0), flip=0.5, auto=1.0),
    "weak-auto": Augmentation(shift=4, flip=0.5, brightness=63 / 255, auto=1.0, cutout=16),
    "strong": Augmentation(
        crop=(0.2, 1.0),
        flip=0.5,
        brightness=0.4,
        contrast=0.4,
        saturation=0.4,
        hue=0.1,
        jitter_probability=0.8,
        grey=0.2,
    ),
    "glyph": Augmentation(rotate=20, scale=0.25, shear=0.25, translate=0.12),
}


def augmentation(name: str) -> Augmentation:
    """Look up a named augmentation.

    Args:
        name: A key of `VIEWS`.

    Raises:
        InlayError: There is no such name.
    """
    if name not in VIEWS:
        raise InlayError(f"There is no augmentation {name!r}; write one of {', '.join(VIEWS)}.")
    return VIEWS[name]
