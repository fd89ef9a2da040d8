"""Calibration of separately trained heads, so that their scores can be compared without old images."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["HeadScale", "calibrated_concat", "measure_scale"]


@dataclass(frozen=True, eq=False)
class HeadScale:
    """How large the scores of a head are on images that it should know.

    Attributes:
        offset: Mean of the largest score, scalar tensor.
        scale: Standard deviation of the largest score, above 0, scalar tensor.
    """

    offset: Tensor
    scale: Tensor


@torch.no_grad()
def measure_scale(logits: Tensor, floor: float = 1e-6) -> HeadScale:
    """Measure the size of a head's largest score.

    Args:
        logits: Scores of the head on features that it should know, [N, C]: replayed features of the old classes
            for an old head, features of the training images for a novel one.
        floor: Least scale, above 0, in units of the scores; it is that of a head whose largest score never varies.

    Returns:
        Mean and population standard deviation of the row maximum, in float64.

    Raises:
        ValueError: If there are no scores or the floor is not above 0.
    """
    if logits.ndim != 2 or logits.numel() == 0:
        raise ValueError(f"logits must be [N, C] with N and C above 0; got {tuple(logits.shape)}")
    if floor <= 0:
        raise ValueError(f"floor must be above 0; got {floor}")
    largest = logits.amax(dim=1).double()
    return HeadScale(largest.mean(), largest.std(correction=0).clamp_min(floor))


def calibrated_concat(old_logits: Tensor, new_scores: Tensor, old_scale: HeadScale, new_scale: HeadScale) -> Tensor:
    """Bring the scores of an old and a novel head to one scale and join them.

    Heads that were never compared in training differ by an arbitrary offset and scale, which would decide
    between old and new classes on their own. The order of the classes within each head is kept.

    Args:
        old_logits: Scores of the old head, [B, O].
        new_scores: Scores of the novel head for the same images, [B, K].
        old_scale: Measured size of the old head's scores.
        new_scale: Measured size of the novel head's scores.

    Returns:
        Scores minus their head's offset, divided by its scale, old classes first, [B, O + K]; in at least float32.

    Raises:
        ValueError: If the batches differ.
    """
    if old_logits.ndim != 2 or new_scores.ndim != 2 or len(old_logits) != len(new_scores):
        raise ValueError(
            f"scores must be [B, O] and [B, K]; got {tuple(old_logits.shape)} and {tuple(new_scores.shape)}"
        )
    precision = torch.promote_types(torch.promote_types(old_logits.dtype, new_scores.dtype), torch.float32)
    heads = ((old_logits, old_scale), (new_scores, new_scale))
    return torch.cat([(scores.to(precision) - head.offset) / head.scale for scores, head in heads], dim=1)
