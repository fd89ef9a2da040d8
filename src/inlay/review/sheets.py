"""Contact sheets: many small pictures in one PNG."""

from __future__ import annotations

import base64
import io
import math

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

__all__ = ["GAP", "data_uri", "sheet", "thumbnails"]

GAP = 4
"""Transparent pixels between neighbouring pictures."""


def sheet(images: Tensor, columns: int, scale: int) -> bytes:
    """Lay pictures out in rows, each pixel enlarged to a square, as a PNG.

    Gaps and unused places are transparent, so that the sheet suits a light and a dark page.

    Args:
        images: pictures in reading order, uint8 [N, C, H, W] with C of 1 (grey) or 3 (RGB).
        columns: most pictures in a row; fewer pictures make a narrower sheet.
        scale: width in the sheet of one pixel of a picture.

    Raises:
        ValueError: if there is no picture, its shape or type does not fit, or a number is below 1.
    """
    _check_pictures(images)
    if columns < 1 or scale < 1:
        raise ValueError(f"columns and scale must be at least 1, not {columns} and {scale}")
    count, channels, height, width = images.shape
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    down, across = height * scale + GAP, width * scale + GAP
    canvas = torch.zeros(channels + 1, rows * down - GAP, columns * across - GAP, dtype=torch.uint8)
    enlarged = images.cpu().repeat_interleave(scale, dim=2).repeat_interleave(scale, dim=3)
    for index, picture in enumerate(enlarged):
        row, column = divmod(index, columns)
        place = canvas[:, row * down : (row + 1) * down - GAP, column * across : (column + 1) * across - GAP]
        place[:-1] = picture
        place[-1] = 255
    buffer = io.BytesIO()
    Image.fromarray(canvas.permute(1, 2, 0).contiguous().numpy()).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def thumbnails(images: Tensor, longest: int) -> Tensor:
    """Shrink pictures by a whole factor, averaging blocks, until no side is above a length.

    Args:
        images: pictures, uint8 [N, C, H, W]; returned as they are where they fit.
        longest: longest side allowed.

    Returns:
        Pictures, uint8 [N, C, h, w]; blocks at the right and bottom edge may be smaller than the others.

    Raises:
        ValueError: as in `sheet`.
    """
    _check_pictures(images)
    if longest < 1:
        raise ValueError(f"longest must be at least 1, not {longest}")
    factor = math.ceil(max(images.shape[2:]) / longest)
    if factor == 1:
        return images
    smaller = F.avg_pool2d(images.float(), factor, ceil_mode=True, count_include_pad=False)
    return smaller.round().to(torch.uint8)


def data_uri(png: bytes) -> str:
    """A PNG as a data: address, so that a page needs no second file."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _check_pictures(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"pictures must be uint8 [N, 1 or 3, H, W], not {images.dtype} {list(images.shape)}")
    if not images.numel():
        raise ValueError("a sheet needs at least one picture")
