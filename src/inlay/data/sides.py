"""The size that images are read at, where nobody says it."""

import statistics
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from inlay.data.pixels import Size

__all__ = ["Sizes", "chosen_side", "chosen_size"]

Sizes: TypeAlias = Sequence[Size] | npt.NDArray[np.int32]

_SIDES = (32, 64, 96, 128, 160, 224)
_MOST_ENLARGEMENT = 1.25
_SMALLEST_SIDE, _SIDE_STEP = 8, 8


def chosen_size(sizes: Sizes) -> Size:
    """Choose the height and width that images are read at.

    It is the size that all share, if its shorter side is at most 224. Images of several sizes become squares: of the
    side that `chosen_side` says or, where most are smaller than 26, of a multiple of 8 near the median of the shorter
    sides.

    Args:
        sizes: Height and width of each image, [N, 2]; none gives the smallest size.
    """
    kinds = {(int(height), int(width)) for height, width in sizes}
    if len(kinds) == 1 and min(next(iter(kinds))) <= _SIDES[-1]:
        return next(iter(kinds))
    median = statistics.median([min(size) for size in np.asarray(sizes).tolist()] or [_SMALLEST_SIDE])
    if median * _MOST_ENLARGEMENT >= _SIDES[0]:
        side = chosen_side(sizes)
    else:
        side = max(int(median / _SIDE_STEP + 0.5) * _SIDE_STEP, _SMALLEST_SIDE)
    return side, side


def chosen_side(sizes: Sizes) -> int:
    """Choose the side of a square: 32, 64, 96, 128, 160 or 224.

    It is the largest of these that enlarges an image of the median shorter side by at most a quarter, and 32 if none
    does. So images of 28 are read at 32, of 64 at 64, of 200 at 224, and large photographs at 224.

    Args:
        sizes: Height and width of each image, [N, 2].

    Raises:
        ValueError: There are none.
    """
    median = statistics.median(np.asarray(sizes).min(axis=1).tolist())
    return max((side for side in _SIDES if side <= _MOST_ENLARGEMENT * median), default=_SIDES[0])
