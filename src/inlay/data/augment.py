"""Random views of whole batches of images, drawn per image on the device of the images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.errors import InlayError

__all__ = ["VIEWS", "Augmentation", "Fill", "augmentation"]

Fill = Literal["zero", "reflect"]

_ASPECTS = (3 / 4, 4 / 3)
_CROP_ATTEMPTS = 10
_SIGMAS = (0.1, 2.0)
# Weights of red, green and blue in luminance (ITU-R BT.601).
_LUMINANCE = (0.299, 0.587, 0.114)

# The largest value of each field that `scaled` multiplies.
_LIMITS: Mapping[str, float] = {
    **dict.fromkeys(("flip", "jitter_probability", "grey", "blur"), 1.0),
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

    def __post_init__(self) -> None:
        if not isinstance(self.shift, int) or self.shift < 0:
            raise ValueError(f"shift must be a whole number from 0; got {self.shift}")
        if self.fill not in ("zero", "reflect"):
            raise ValueError(f"fill must be 'zero' or 'reflect'; got {self.fill!r}")
        if self.crop is not None and not 0 < self.crop[0] <= self.crop[1] <= 1:
            raise ValueError(f"crop must be two rising areas above 0 and up to 1; got {self.crop}")
        for name, limit in _LIMITS.items():
            value = getattr(self, name)
            if not 0 <= value <= limit or math.isinf(value):
                raise ValueError(f"{name} must be finite and lie in 0..{limit}; got {value}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw one view of each image.

        Args:
            images: Bytes, or floats in 0..1, [B, C, H, W] with 1 or 3 channels and sides of 2 pixels or more.
            generator: Source of all draws, on any device.

        Returns:
            The views in 0..1, [B, C, H, W], on the device of the images; float32, or float64 if they are.

        Raises:
            ValueError: The images have another shape or type.
        """
        values = _as_floats(images)
        draws = _Draws(len(values), generator, values)
        if self._affine or self.crop is not None:
            values = _sampled(values, draws, self)
        elif self.shift or self.flip:
            values = _gathered(values, draws, self)
        if self.brightness or self.contrast or self.saturation or self.hue:
            values = draws.choose(self.jitter_probability, _jittered(values, draws, self), values)
        if self.grey:
            values = draws.choose(self.grey, _luminance(values).expand_as(values), values)
        if self.blur:
            values = draws.choose(self.blur, _blurred(values, draws.uniform(*_SIGMAS)), values)
        return values

    def scaled(self, strength: float) -> Augmentation:
        """A weaker version: all ranges and probabilities times a factor, `shift` rounded.

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
        return replace(self, shift=round(self.shift * strength), crop=crop, **factors)

    @property
    def _affine(self) -> bool:
        return any((self.rotate, self.scale, self.shear, self.translate))


@dataclass(frozen=True)
class _Draws:
    """Random numbers for a batch, drawn where the generator is and moved to where the images are."""

    count: int
    generator: torch.Generator
    like: Tensor

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Numbers from low to high, [B, *shape]."""
        unit = torch.rand(self.count, *shape, generator=self.generator, device=self.generator.device)
        return (low + (high - low) * unit).to(self.like)

    def within(self, reach: float, *shape: int) -> Tensor:
        """Numbers from -reach to reach, [B, *shape]."""
        return self.uniform(-reach, reach, *shape)

    def whole(self, reach: int) -> Tensor:
        """Whole numbers from -reach to reach, [B, 2]."""
        drawn = torch.empty(self.count, 2, dtype=torch.int64, device=self.generator.device)
        return drawn.random_(-reach, reach + 1, generator=self.generator).to(self.like.device)

    def chance(self, probability: float) -> Tensor:
        """Truth values, [B]."""
        return self.uniform(0, 1) < probability

    def choose(self, probability: float, changed: Tensor, values: Tensor) -> Tensor:
        """Take each image from `changed` with some probability, else from `values`, [B, C, H, W]."""
        return torch.where(self.chance(probability)[:, None, None, None], changed, values)


def _as_floats(images: Tensor) -> Tensor:
    if images.ndim != 4 or images.shape[1] not in (1, 3) or min(images.shape[2:]) < 2:
        raise ValueError(f"images must be [B, 1 or 3, H, W], H and W from 2; got {tuple(images.shape)}")
    if images.dtype == torch.uint8:
        return images.float() / 255
    if not images.is_floating_point():
        raise ValueError(f"images must be uint8 or floats in 0..1; got {images.dtype}")
    return images.to(torch.promote_types(images.dtype, torch.float32))


def _gathered(images: Tensor, draws: _Draws, settings: Augmentation) -> Tensor:
    """Shift and flip by whole pixels, so that every value is one of the image or a zero."""
    height, width = images.shape[2:]
    offsets = draws.whole(settings.shift)
    columns = torch.arange(width, device=images.device)
    columns = torch.where(draws.chance(settings.flip)[:, None], columns.flip(0), columns) + offsets[:, :1]
    rows = torch.arange(height, device=images.device) + offsets[:, 1:]
    batch = torch.arange(len(images), device=images.device)[:, None, None, None]
    channels = torch.arange(images.shape[1], device=images.device)[:, None, None]
    inner = (_mirrored(rows, height)[:, None, :, None], _mirrored(columns, width)[:, None, None])
    found = images[batch, channels, *inner]
    if settings.fill == "reflect":
        return found
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
    return found * inside[:, None]


def _mirrored(positions: Tensor, side: int) -> Tensor:
    """Fold positions beyond the edge pixels 0 and side - 1 back in."""
    period = 2 * (side - 1)
    folded = positions % period
    return torch.minimum(folded, period - folded)


def _sampled(images: Tensor, draws: _Draws, settings: Augmentation) -> Tensor:
    """Crop, flip and map affinely in one bilinear sampling."""
    height, width = images.shape[2:]
    sides = images.new_tensor([width, height])
    move = draws.within(settings.translate, 2) * sides + draws.whole(settings.shift)
    x, y = (torch.arange(side, device=images.device).to(images) - (side - 1) / 2 for side in (width, height))
    mirror = 1 - 2 * draws.chance(settings.flip).to(images)
    x = (mirror[:, None] * x - move[:, :1])[:, None, :, None]
    y = (y - move[:, 1:])[:, :, None, None]
    matrix = _unwarping(draws, settings)[:, None, None]
    # Written out, as a matrix product may run in a reduced precision that is too coarse for positions.
    positions = matrix[..., 0] * x + matrix[..., 1] * y
    if settings.crop is not None:
        zoom = _zooms(draws, height / width, settings.crop)
        centres = draws.within(0.5, 2) * (1 - zoom) * sides
        positions = centres[:, None, None] + zoom[:, None, None] * positions
    padding = "reflection" if settings.fill == "reflect" else "zeros"
    if not (settings._affine or settings.shift):
        # A box reaches half a pixel past the outermost centres, yet it never leaves the image.
        padding = "border"
    grid = positions / ((sides - 1) / 2)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=True)


def _unwarping(draws: _Draws, settings: Augmentation) -> Tensor:
    """Draw inverses of stretching, then shearing, then rotating, on x to the right and y down, [B, 2, 2]."""
    angle = torch.deg2rad(draws.within(settings.rotate))
    shear = draws.within(settings.shear)
    shrink = torch.exp(draws.within(settings.scale, 2))
    cos, sin = angle.cos(), angle.sin()
    first = torch.stack([cos - shear * sin, -sin - shear * cos], dim=1)
    return torch.stack([first, torch.stack([sin, cos], dim=1)], dim=1) * shrink[:, :, None]


def _zooms(draws: _Draws, slenderness: float, areas: tuple[float, float]) -> Tensor:
    """Draw the width and height of boxes as parts of those of an image with this height per width, [B, 2].

    The first of several attempts that fits is taken; if none does, the largest box with an allowed aspect.
    """
    low, high = (ratio * slenderness for ratio in _ASPECTS)
    area = draws.uniform(*areas, _CROP_ATTEMPTS)
    ratio = torch.exp(draws.uniform(math.log(low), math.log(high), _CROP_ATTEMPTS))
    nearest = min(max(1.0, low), high)
    largest = area.new_tensor([min(1.0, nearest), min(1.0, 1 / nearest)])
    attempts = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], dim=2)
    attempts = torch.cat([attempts, largest.expand(draws.count, 1, 2)], dim=1)
    first = (attempts <= 1).all(dim=2).int().argmax(dim=1)
    return attempts[torch.arange(draws.count, device=first.device), first]


def _jittered(images: Tensor, draws: _Draws, settings: Augmentation) -> Tensor:
    def factor(reach: float) -> Tensor:
        return draws.uniform(max(0.0, 1 - reach), 1 + reach, 1, 1, 1)

    values = images
    if settings.brightness:
        values = (values * factor(settings.brightness)).clamp(0, 1)
    if settings.contrast:
        mean = _luminance(values).mean(dim=(1, 2, 3), keepdim=True)
        values = (mean + (values - mean) * factor(settings.contrast)).clamp(0, 1)
    if settings.saturation:
        grey = _luminance(values)
        values = (grey + (values - grey) * factor(settings.saturation)).clamp(0, 1)
    if settings.hue and values.shape[1] == 3:
        values = _turned_hue(values, draws.within(settings.hue))
    return values


def _luminance(images: Tensor) -> Tensor:
    """The brightness of each pixel, [B, 1, H, W]."""
    if images.shape[1] == 1:
        return images
    return (images * images.new_tensor(_LUMINANCE)[:, None, None]).sum(dim=1, keepdim=True)


def _turned_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of each image [B, 3, H, W] in 0..1 by some turns [B], at constant value and saturation."""
    red, green, blue = images.unbind(dim=1)
    value = images.amax(dim=1)
    chroma = value - images.amin(dim=1)
    divisor = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    # Hue in sixths of a turn from red, in the half-open sector of the largest channel.
    sector = torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor)
    sector = torch.where(value == red, (green - blue) / divisor, sector) + 6 * turns[:, None, None]
    phases = images.new_tensor([5.0, 3.0, 1.0])[:, None, None]
    ramp = (phases + sector[:, None]).remainder(6)
    return value[:, None] - chroma[:, None] * torch.minimum(ramp, 4 - ramp).clamp(0, 1)


def _blurred(images: Tensor, sigmas: Tensor) -> Tensor:
    """Blur each image [B, C, H, W] with its own Gaussian [B]; the borders are mirrored."""
    reach = max(3, int(0.1 * min(images.shape[2:])) | 1) // 2
    steps = torch.arange(-reach, reach + 1, device=images.device).to(images)
    weights = torch.softmax(-0.5 * (steps / sigmas[:, None]).square(), dim=1)[:, :, None, None, None]
    for dim, margins in ((2, (0, 0, reach, reach)), (3, (reach, reach, 0, 0))):
        padded = F.pad(images, margins, mode="reflect")
        images = torch.zeros_like(images)
        for tap in range(2 * reach + 1):
            images = images + weights[:, tap] * padded.narrow(dim, tap, images.shape[dim])
    return images


# The protocol takes "weak" for CIFAR-100 and base stages, "weak-reflect" for new classes of CIFAR-10 and
# "weak-crop" for Tiny-ImageNet. "strong" is SimCLR's; "glyph" suits signs that a mirror would change.
VIEWS: Mapping[str, Augmentation] = {
    "none": Augmentation(),
    "weak": Augmentation(shift=4, flip=0.5),
    "weak-reflect": Augmentation(shift=4, fill="reflect", flip=0.5),
    "weak-crop": Augmentation(crop=(0.5, 1.0), flip=0.5),
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
        raise InlayError(f"There is no augmentation '{name}'; write one of {', '.join(VIEWS)}.")
    return VIEWS[name]
