"""Agreement of the predictions for two views of the same images."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["view_consistency"]


def view_consistency(first_p: Tensor, second_p: Tensor) -> Tensor:
    """Mean squared difference of the class probabilities of two views.

    The mean is over images and classes, so the value is at most 2 / K. Gradients flow through both views.

    Args:
        first_p: Probabilities of the classes for the first views, rows that sum to 1, [B, K].
        second_p: The same for the second views in the same order, [B, K].

    Returns:
        The scalar mean over all B · K elements, in at least float32.

    Raises:
        ValueError: If the shapes differ or there are no images.
    """
    if first_p.ndim != 2 or first_p.shape != second_p.shape or len(first_p) == 0:
        raise ValueError(f"both views must be [B, K]; got {tuple(first_p.shape)} and {tuple(second_p.shape)}")
    precision = torch.promote_types(torch.promote_types(first_p.dtype, second_p.dtype), torch.float32)
    return F.mse_loss(first_p.to(precision), second_p.to(precision))
