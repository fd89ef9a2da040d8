"""Which classes are taken for which, and old ones for new ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inlay.evaluation.arrays import Ids, Values, to_ids

__all__ = ["confusion", "old_new_confusion"]


def confusion(predicted: Values, truth: Values, classes: int) -> Ids:
    """Count the images of each class by the class predicted for them.

    Args:
        predicted: output predicted for each image, [N].
        truth: output that is right for each image, [N].
        classes: number of outputs C.

    Returns:
        Counts, [C, C]: row i, column j has the images of class i that were taken for class j.

    Raises:
        ValueError: if the ids do not fit each other or are not outputs.
    """
    chosen, right = to_ids(predicted, "predicted"), to_ids(truth, "truth")
    if chosen.shape != right.shape:
        raise ValueError(f"{len(chosen)} predictions but {len(right)} true classes were given")
    for ids, name in ((chosen, "predicted"), (right, "truth")):
        if ((ids < 0) | (ids >= classes)).any():
            raise ValueError(f"{name} must hold ids from 0 to {classes - 1}")
    counts: Ids = np.bincount(right * classes + chosen, minlength=classes * classes).reshape(classes, classes)
    return counts


def old_new_confusion(predicted: Values, truth: Values, old: int) -> NDArray[np.float64]:
    """Share of the old and of the new images that are taken for an old and for a new class.

    Args:
        predicted: output predicted for each image, [N].
        truth: output that is right for each image, [N].
        old: number of old outputs, which come first.

    Returns:
        Shares, [2, 2]: rows are old and new images, columns old and new predictions; each row sums to 1.

    Raises:
        ValueError: if the ids do not fit each other or are negative, or there are no old or no new images.
    """
    chosen, right = to_ids(predicted, "predicted"), to_ids(truth, "truth")
    if (chosen < 0).any() or (right < 0).any():
        raise ValueError("predicted and truth must hold ids from 0")
    counts = confusion((chosen >= old).astype(np.int64), (right >= old).astype(np.int64), 2)
    images = counts.sum(axis=1, keepdims=True)
    if not images.all():
        raise ValueError("images of both old and new classes are needed")
    shares: NDArray[np.float64] = counts / images
    return shares
