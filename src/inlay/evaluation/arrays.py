"""Conversion of tensors and sequences to the NumPy arrays that scoring works on."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

__all__ = ["Ids", "Values", "to_ids", "to_logits"]

Ids = NDArray[np.int64]
Values = Tensor | ArrayLike


def to_ids(values: Values, name: str) -> Ids:
    """Whole numbers as a vector.

    Args:
        values: one id per image, [N].
        name: what the values are, for the error text.

    Raises:
        ValueError: if the values are not a vector of integers.
    """
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} must be a vector of integers, got shape {array.shape} of {array.dtype}")
    return array.astype(np.int64)


def to_logits(values: Values) -> NDArray[np.float64]:
    """Logits as a float64 matrix, [N, C].

    Raises:
        ValueError: if the values are not a matrix or hold a NaN, which argmax would take for the largest.
    """
    array = np.asarray(values.detach().cpu().double() if isinstance(values, Tensor) else values, dtype=float)
    if array.ndim != 2:
        raise ValueError(f"logits must be a matrix [images, outputs], got shape {array.shape}")
    if np.isnan(array).any():
        raise ValueError("logits must not hold NaN")
    return array
