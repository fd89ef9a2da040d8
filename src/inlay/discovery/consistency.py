"""Agreement of the predictions for two views of the same images."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["view_consistency"]


def view_consistency(first_logits: Tensor, second_logits: Tensor) -> Tensor:
    """Mean squared difference of the class probabilities of two views.

    The mean is over images and classes, so the value is at most 2 / K. Gradients flow through both views.

    Args:
        first_logits: Logits of the first views, [B, K].
        second_logits: Logits of the second views in the same order, [B, K].

    Returns:
        The scalar mean over all B · K elements, in at least float32.

    Raises:
        ValueError: If the shapes differ or there are no images.
    """
    if first_logits.ndim != 2 or first_logits.shape != second_logits.shape or len(first_logits) == 0:
        raise ValueError(f"both views must be [B, K]; got {tuple(first_logits.shape)} and {tuple(second_logits.shape)}")
    dtype = torch.promote_types(first_logits.dtype, torch.float32)
    return F.mse_loss(first_logits.softmax(dim=1, dtype=dtype), second_logits.softmax(dim=1, dtype=dtype))
