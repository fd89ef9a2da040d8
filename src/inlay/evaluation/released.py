"""Scores as the code released with FRoST computes them, with its two defects: a diagnosis, never a result."""

from collections.abc import Sequence

import numpy as np

from inlay.evaluation.arrays import Ids, Values, to_ids, to_logits

__all__ = ["relabelled_in_place", "released_accuracies"]


def relabelled_in_place(truth: Values, clusters: Sequence[int], first: int) -> Ids:
    """Give the new classes the numbers of their clusters, one class after another, in the array that is compared.

    A class that was given the number of a later one is therefore given that one's number in its turn: for most
    matchings several classes end under one number.

    Args:
        truth: True classes, [N]; the new classes are first, first + 1, …
        clusters: Cluster of each new class, from 0.
        first: Number of old classes.
    """
    labels = to_ids(truth, "truth").copy()
    for index, cluster in enumerate(clusters):
        labels[labels == first + index] = first + cluster
    return labels


def released_accuracies(
    logits: Values, novel: Values | None, truth: Values, clusters: Sequence[int], old: int
) -> dict[str, float]:
    """Return the accuracies on old, new and all images under both defects.

    The outputs of the novel head are put beside those of the joint head before the largest is taken, so that a new
    image whose novel head is the surer one counts as wrong. Labels are changed in place, see `relabelled_in_place`.

    Args:
        logits: Scores of all classes, [N, C].
        novel: Scores of the novel head, [N, K]; None if they are among `logits` already.
        truth: True classes, [N]; old ones are 0 to old - 1, new ones follow in the order of `clusters`.
        clusters: Cluster of each new class, from 0.
        old: Number of old classes.

    Raises:
        ValueError: If there are no old or no new images, or shapes do not fit.
    """
    scores = to_logits(logits)
    if novel is not None:
        scores = np.concatenate([scores, to_logits(novel)], axis=1)
    is_old = to_ids(truth, "truth") < old
    labels = relabelled_in_place(truth, clusters, old)
    if len(scores) != len(labels) or not is_old.any() or is_old.all():
        raise ValueError(f"{len(scores)} rows of scores and {len(labels)} labels of old and of new classes are needed")
    right = scores.argmax(axis=1) == labels
    return {"old": float(right[is_old].mean()), "new": float(right[~is_old].mean()), "all": float(right.mean())}
