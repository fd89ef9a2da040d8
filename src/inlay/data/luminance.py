"""The brightness of colours as the eye sees it."""

from torch import Tensor

__all__ = ["luminance"]

# Weights of red, green and blue (ITU-R BT.601).
_RED, _GREEN, _BLUE = 0.299, 0.587, 0.114


def luminance(images: Tensor) -> Tensor:
    """Return the brightness of each pixel, [B, 1, H, W], of images [B, 1 or 3, H, W]."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images[:, :1], images[:, 1:2], images[:, 2:]
    return (red * _RED).add_(green, alpha=_GREEN).add_(blue, alpha=_BLUE)
