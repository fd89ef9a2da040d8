"""Matching of clusters, which have no names, to true classes, which do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from inlay.errors import InlayError
from inlay.evaluation.arrays import Ids, Values, to_ids

__all__ = ["MatchedOn", "Matching", "map_truth", "match_clusters"]

MatchedOn = Literal["train", "test"]

_MATCHING_KEYS = {"stage", "truth_of", "matched_on"}


def match_clusters(clusters: Values, truth: Values, cluster_count: int, truth_count: int) -> Ids:
    """Pair clusters with true classes so that the most images agree (Hungarian method).

    The table of shared images has exactly `cluster_count` rows and `truth_count` columns, so a cluster
    without images keeps its row. As many pairs are made as the shorter side allows, also pairs that share
    no image. The same table always gives the same pairs.

    Args:
        clusters: cluster of each image, [N], from 0 to cluster_count - 1.
        truth: true class of each image, [N], from 0 to truth_count - 1.
        cluster_count: number of clusters, empty ones included.
        truth_count: number of true classes, those without images included.

    Returns:
        For each true class its cluster, or -1 where none is left, [truth_count].

    Raises:
        ValueError: if the vectors differ in length or hold an id outside its range.
    """
    cluster_ids, truth_ids = to_ids(clusters, "clusters"), to_ids(truth, "truth")
    if cluster_ids.shape != truth_ids.shape:
        raise ValueError(f"{len(cluster_ids)} clusters but {len(truth_ids)} true classes were given")
    for ids, limit, name in ((cluster_ids, cluster_count, "clusters"), (truth_ids, truth_count, "truth")):
        if ids.size and (ids.min() < 0 or ids.max() >= limit):
            raise ValueError(f"{name} must lie from 0 to {limit - 1}")
    from scipy.optimize import linear_sum_assignment  # slow to import, so only when it is needed

    shared = np.zeros((cluster_count, truth_count), dtype=np.int64)
    np.add.at(shared, (cluster_ids, truth_ids), 1)
    rows, columns = linear_sum_assignment(shared, maximize=True)
    cluster_of = np.full(truth_count, -1, dtype=np.int64)
    cluster_of[columns] = rows
    return cluster_of


@dataclass(frozen=True)
class Matching:
    """The true class that each cluster of one stage stands for.

    Attributes:
        stage: stage that found the clusters.
        truth_of: for each cluster of this stage its true class, or None where no class was left for it.
        matched_on: split whose images decided, "train" in the protocol.
    """

    stage: int
    truth_of: tuple[str | None, ...]
    matched_on: MatchedOn

    @classmethod
    def solve(
        cls,
        stage: int,
        clusters: Values,
        truth: Sequence[str],
        cluster_count: int,
        class_names: Sequence[str],
        matched_on: MatchedOn,
    ) -> Matching:
        """Match the clusters of one stage to the names of its true classes.

        Args:
            stage: stage that found the clusters.
            clusters: cluster of each image, [N], from 0 to cluster_count - 1.
            truth: name of the true class of each image, N of them, all from `class_names`.
            cluster_count: number of clusters of the stage, empty ones included.
            class_names: all true classes of the stage.
            matched_on: split that the images belong to.

        Raises:
            ValueError: if a true class is not in `class_names`, or the clusters do not fit.
        """
        column = {name: index for index, name in enumerate(class_names)}
        unknown = set(truth) - column.keys()
        if unknown:
            raise ValueError(f"true classes {sorted(unknown)} are not among the classes of stage {stage}")
        cluster_of = match_clusters(clusters, [column[name] for name in truth], cluster_count, len(class_names))
        truth_of: list[str | None] = [None] * cluster_count
        for name, cluster in zip(class_names, cluster_of, strict=True):
            if cluster >= 0:
                truth_of[cluster] = name
        return cls(stage, tuple(truth_of), matched_on)

    def to_json(self) -> dict[str, object]:
        """The matching as a plain JSON object."""
        return {**vars(self), "truth_of": list(self.truth_of)}

    @classmethod
    def from_json(cls, data: object) -> Matching:
        """Rebuild a matching from what `to_json` gave.

        Raises:
            InlayError: if the data is not what `to_json` writes.
        """
        if not isinstance(data, dict) or data.keys() != _MATCHING_KEYS:
            raise _damaged(f"it does not have exactly the keys {', '.join(sorted(_MATCHING_KEYS))}")
        stage, truth_of, matched_on = data["stage"], data["truth_of"], data["matched_on"]
        if not isinstance(stage, int) or isinstance(stage, bool) or stage < 0:
            raise _damaged(f"the stage is {stage!r}")
        if matched_on not in get_args(MatchedOn):
            raise _damaged(f"matched_on is {matched_on!r}")
        if not isinstance(truth_of, list) or not all(n is None or isinstance(n, str) for n in truth_of):
            raise _damaged("truth_of is not a list of names")
        named = [name for name in truth_of if name is not None]
        if len(set(named)) < len(named):
            raise _damaged("two clusters stand for one class")
        return cls(stage, tuple(truth_of), matched_on)


def map_truth(truth: Sequence[str], base_names: Sequence[str], matchings: Sequence[Matching]) -> Ids:
    """Output id that is right for each image, given the true class by name.

    Every name is looked up once in a finished table; no id is rewritten in place, where a new id could be
    taken for an old one.

    Args:
        truth: name of the true class of each image, N of them.
        base_names: base classes in the order of their outputs, from output 0.
        matchings: matchings of the later stages in order; outputs of each follow those of the one before.

    Returns:
        Output ids, [N]. A class without a cluster gets a negative number of its own, -1, -2, ...

    Raises:
        ValueError: if two outputs stand for the same class.
    """
    outputs: list[str | None] = [*base_names, *(name for m in matchings for name in m.truth_of)]
    id_of = {name: index for index, name in enumerate(outputs) if name is not None}
    if len(id_of) < sum(name is not None for name in outputs):
        raise ValueError("two outputs stand for the same true class")
    for rank, name in enumerate(sorted(set(truth) - id_of.keys()), start=1):
        id_of[name] = -rank
    return np.array([id_of[name] for name in truth], dtype=np.int64)


def _damaged(reason: str) -> InlayError:
    return InlayError(f"The matching was damaged or edited by hand ({reason}); put back the file that inlay wrote.")
