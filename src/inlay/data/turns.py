"""Quarter turns of images."""

import torch
from torch import Tensor

__all__ = ["quarter_turns"]


def quarter_turns(images: Tensor, turns: Tensor) -> Tensor:
    """Turn each image by a number of quarter turns, counter-clockwise.

    Args:
        images: Square images, [B, C, S, S].
        turns: Quarter turns of each image, whole numbers in 0..3, [B].

    Returns:
        The turned images, [B, C, S, S].

    Raises:
        ValueError: If the images are not square, or there are not as many numbers.
    """
    if images.ndim != 4 or images.shape[2] != images.shape[3] or turns.shape != images.shape[:1]:
        raise ValueError(f"images must be [B, C, S, S] and turns [B]; got {tuple(images.shape)}, {tuple(turns.shape)}")
    number = turns.view(-1, 1, 1, 1)
    half = torch.where(number >= 2, images.flip((2, 3)), images)
    return torch.where(number % 2 == 1, half.transpose(2, 3).flip(2), half)
