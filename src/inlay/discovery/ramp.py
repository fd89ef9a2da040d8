"""Weights that grow during training."""

import math

__all__ = ["ramp_up"]


def ramp_up(t: float, length: float) -> float:
    """Grow from exp(-5) at the start to 1 at `length` along a Gaussian flank, exp(-5 (1 - min(t, T) / T)²).

    Args:
        t: Time since the start, 0 or more.
        length: Time T at which the weight reaches 1; 0 means it is 1 from the start.

    Returns:
        The weight, between exp(-5) and 1.

    Raises:
        ValueError: If either is negative.
    """
    if t < 0 or length < 0:
        raise ValueError(f"time and length must be 0 or more; got {t} and {length}")
    if length == 0:
        return 1.0
    return math.exp(-5.0 * (1.0 - min(t, length) / length) ** 2)
