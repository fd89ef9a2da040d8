"""What accuracy on old classes costs in accuracy on new ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inlay.evaluation.arrays import Ids, Values, to_ids, to_logits

__all__ = ["Tradeoff", "TradeoffPoint", "tradeoff"]

_Floats = NDArray[np.float64]


class TradeoffPoint(NamedTuple):
    """Accuracy on old and on new images, as fractions, with a bias added to every new output."""

    bias: float
    old: float
    new: float


@dataclass(frozen=True)
class Tradeoff:
    """Accuracy on old against accuracy on new images as new outputs are favoured more and more.

    Attributes:
        points: the curve by rising bias: from all images taken for old ones to all taken for new ones, with bias 0
            in between.
        area: area under the whole curve, no point left out: the share of the pairs of an old and a new image of
            which both can be right with one bias, equal margins counting half.
    """

    points: tuple[TradeoffPoint, ...]
    area: float

    def to_json(self) -> dict[str, object]:
        """The curve as a plain JSON object, each point as [bias, old, new]."""
        return {"points": [list(point) for point in self.points], "area": self.area}


def tradeoff(logits: Values, truth: Values, old: int, points: int = 200) -> Tradeoff:
    """Accuracy on old and on new images for every bias at which one of them changes.

    An image goes to its best new output if the bias exceeds the margin by which its best old output leads. Of equal
    outputs the first wins. Between two margins nothing changes, so one bias stands for all that lie there.

    Args:
        logits: outputs of the joint head, [N, C], finite.
        truth: output that is right for each image, [N].
        old: number of old outputs, which come first.
        points: how many points are kept at most, evenly thinned; at least 3, for both ends and bias 0.

    Raises:
        ValueError: if shapes, ids or numbers do not fit, or there are no old or no new images.
    """
    values, right = to_logits(logits), to_ids(truth, "truth")
    _check(values, right, old, points)
    margins = values[:, :old].max(axis=1) - values[:, old:].max(axis=1)
    is_new = right >= old
    kept = np.sort(margins[~is_new & (values[:, :old].argmax(axis=1) == right)])
    won = np.sort(margins[is_new & (old + values[:, old:].argmax(axis=1) == right)])
    biases = _biases(np.union1d(kept, won))
    accuracy_old = (len(kept) - np.searchsorted(kept, biases)) / np.count_nonzero(~is_new)
    accuracy_new = np.searchsorted(won, biases) / np.count_nonzero(is_new)
    curve = np.stack([biases, accuracy_old, accuracy_new], axis=1)
    chosen = _thinned(len(biases), int(np.flatnonzero(biases == 0)[0]), points)
    return Tradeoff(
        points=tuple(TradeoffPoint(*point) for point in curve[chosen].tolist()),
        area=float(-np.diff(accuracy_old) @ (accuracy_new[1:] + accuracy_new[:-1]) / 2),
    )


def _biases(margins: _Floats) -> _Floats:
    """Return one bias below, one between each two and one above the margins, rising, with 0 among them."""
    if not len(margins):
        return np.zeros(1)
    lower, upper = margins[:-1], margins[1:]
    middle = lower + (upper - lower) / 2
    # Nothing may lie between two neighbouring numbers; a margin itself still counts as below it.
    middle = np.where(middle > lower, middle, upper)
    biases: _Floats = np.concatenate([margins[:1] - 1, middle, margins[-1:] + 1])
    biases[np.searchsorted(margins, 0.0)] = 0.0
    return biases


def _thinned(count: int, wanted: int, limit: int) -> Ids:
    """Return at most `limit` of the indices below `count`: both ends, one that is wanted, and others evenly."""
    if count <= limit:
        return np.arange(count)
    return np.union1d(np.linspace(0, count - 1, limit - 1).round().astype(np.int64), wanted)


def _check(values: _Floats, right: Ids, old: int, points: int) -> None:
    count, outputs = values.shape
    if not 0 < old < outputs:
        raise ValueError(f"old must lie from 1 to {outputs - 1} of {outputs} outputs, not {old}")
    if points < 3:
        raise ValueError(f"points must be at least 3, not {points}")
    if len(right) != count:
        raise ValueError(f"{count} rows of logits but {len(right)} true classes were given")
    if not np.isfinite(values).all():
        raise ValueError("logits must be finite")
    if ((right < 0) | (right >= outputs)).any():
        raise ValueError(f"truth must hold ids from 0 to {outputs - 1}")
    if not (right < old).any() or not (right >= old).any():
        raise ValueError("images of both old and new classes are needed")
