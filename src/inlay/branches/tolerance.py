"""How far two networks that compute the same function may lie apart."""

from collections.abc import Iterable

import torch

__all__ = ["tolerance_for"]

# What rounding weights to a type may move the outputs by, relative to max(1, max |output|).
_TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 5e-2}


def tolerance_for(dtypes: Iterable[torch.dtype]) -> float:
    """Return the largest relative difference that rounding explains, given by the coarsest of the types.

    Args:
        dtypes: Types of weights, outputs or stored deltas; those that are not floating do not count.
    """
    known = [_TOLERANCES[dtype] for dtype in dtypes if dtype in _TOLERANCES]
    return max(known, default=_TOLERANCES[torch.float32])
