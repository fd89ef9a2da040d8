"""Distance between the features of the model in training and those of the frozen one."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["DistillationForm", "feature_distillation"]

DistillationForm = Literal["batch", "sample", "raw", "squared"]

# Keeps the gradient of the square root finite where both models agree exactly, as they do at the start.
_EPSILON = 1e-12


def feature_distillation(current: Tensor, frozen: Tensor, form: DistillationForm = "batch") -> Tensor:
    """Measure how far the features have moved from the frozen model's (Eq. 2, with a plus sign).

    The paper prints a minus sign, which would reward moving away; its stated aim needs the plus.

    Args:
        current: Features of the model in training, [B, D].
        frozen: Features of the frozen model for the same images, [B, D]; no gradient flows to them.
        form: "batch" flattens each matrix into one vector, L2-normalises it and takes the Euclidean distance.
            "sample" is the mean distance of L2-normalised rows, "squared" the mean of their squares. "raw" is
            the mean distance of the rows as they are.

    Returns:
        The scalar distance, in at least float32.

    Raises:
        ValueError: If the shapes differ or the form is unknown.
    """
    if current.shape != frozen.shape or current.ndim != 2:
        raise ValueError(f"features must both be [B, D]; got {tuple(current.shape)}, {tuple(frozen.shape)}")
    precision = torch.promote_types(current.dtype, torch.float32)
    current, frozen = current.to(precision), frozen.detach().to(precision)
    if form == "batch":
        return _row_distances(F.normalize(current.reshape(1, -1)), F.normalize(frozen.reshape(1, -1))).mean()
    if form == "raw":
        return _row_distances(current, frozen).mean()
    current, frozen = F.normalize(current), F.normalize(frozen)
    if form == "sample":
        return _row_distances(current, frozen).mean()
    if form == "squared":
        return (current - frozen).square().sum(dim=1).mean()
    raise ValueError(f"form must be 'batch', 'sample', 'raw' or 'squared'; got {form!r}")


def _row_distances(current: Tensor, frozen: Tensor) -> Tensor:
    return ((current - frozen).square().sum(dim=1) + _EPSILON).sqrt()
