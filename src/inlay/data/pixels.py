"""The pixels of one image: colour mode and size."""

from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

from inlay.data.images import ImageSet
from inlay.errors import InlayError

__all__ = ["Pixels", "Size", "as_size", "check_channels", "conform", "convert", "fit", "to_array"]

Size: TypeAlias = tuple[int, int]
Pixels: TypeAlias = npt.NDArray[np.uint8]

_MODES = {1: "L", 3: "RGB"}
_PLAIN_MODES = ("1", "L", "RGB")
_LARGEST_SIDE = 4096


def as_size(size: int | Size | None) -> Size | None:
    """Read a side length or a pair (height, width).

    Raises:
        InlayError: A side is not a positive whole number, or larger than any network takes.
    """
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in sides):
        raise InlayError(f"The image size {size!r} is not understood; write one side such as 64, or (height, width).")
    if max(sides) > _LARGEST_SIDE:
        raise InlayError(f"Images of {max(sides):,} pixels are too large; write a side of at most {_LARGEST_SIDE:,}.")
    return sides[0], sides[1]


def check_channels(channels: int | None) -> None:
    """Refuse a number of channels that images cannot be converted to.

    Raises:
        InlayError: The number is neither 1 nor 3.
    """
    if channels is not None and channels not in _MODES:
        raise InlayError(f"Images cannot have {channels!r} channels; write 1 for grey or 3 for colour.")


def convert(image: Image.Image, channels: int) -> Image.Image:
    """Bring a Pillow image of any mode to 8-bit grey or RGB.

    Transparent images are laid on white, 16-bit values are divided by 257 and rounded, colour becomes luma.

    Args:
        image: The image to convert.
        channels: 1 for grey, 3 for RGB.

    Raises:
        ValueError: The mode has no faithful 8-bit form.
    """
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = _from_16_bit(image)
    elif image.mode == "F":
        raise ValueError("floating-point pixels, save it with 8 or 16 bits")
    elif image.has_transparency_data:
        image = _on_white(image)
    if image.mode not in _PLAIN_MODES:
        image = image.convert("RGB")
    return image.convert(_MODES[channels])


def fit(image: Image.Image, size: Size) -> Image.Image:
    """Scale an image until it just covers a size, antialiased, and cut away what hangs over on both sides.

    Args:
        image: An image in mode L or RGB.
        size: Height and width of the result.
    """
    height, width = size
    if image.size == (width, height):
        return image
    return ImageOps.fit(image, (width, height), method=Image.Resampling.BICUBIC)


def to_array(image: Image.Image) -> Pixels:
    """The pixels of an L or RGB image as uint8 [C, H, W]."""
    pixels: Pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def conform(images: ImageSet, size: Size | None, channels: int | None) -> ImageSet:
    """Bring a set to another size or number of channels; a set that already has them is returned as it is.

    Args:
        images: The set to convert.
        size: Height and width, or None to keep them.
        channels: 1, 3, or None to keep them.

    Raises:
        InlayError: The images have neither one nor three channels, or are empty in height or width.
    """
    size = size or images.size
    channels = channels or images.channels
    if images.size == size and images.channels == channels:
        return images
    if images.channels not in _MODES or 0 in images.size:
        raise InlayError(f"Images of shape {list(images.images.shape[1:])} cannot be converted; pass 1 or 3 channels.")
    result = np.empty((len(images), channels, *size), dtype=np.uint8)
    for number, pixels in enumerate(images.images.cpu().numpy()):
        picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0).copy())
        result[number] = to_array(fit(convert(picture, channels), size))
    return replace(images, images=torch.from_numpy(result))


def _from_16_bit(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int32)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("grey values outside 16 bits, save it with 8 or 16 bits")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def _on_white(image: Image.Image) -> Image.Image:
    picture = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
