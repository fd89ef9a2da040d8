"""How many new classes are counted, against the truth and two baselines."""

import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.own_images_cases import Case
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import silhouette_score
from torch import Tensor

from inlay.data import ImageSet
from inlay.discovery.class_count import CountSettings, candidate_counts
from inlay.discovery.kmeans import kmeans
from inlay.engine.randomness import generator
from inlay.piles import count_new_classes, sort_pile

__all__ = ["ERROR", "count_rows", "max_acc_count", "silhouette_count", "uneven"]

ERROR = 0.05

_SMALLEST_SHARE = 0.1
_POINTS = 5000
_SILHOUETTE_POINTS = 2000
_LABELLED_PER_CLASS = 50


def count_rows(case: Case, counts: tuple[int, ...], baselines: bool = True) -> list[dict[str, Any]]:
    """Count the classes of each pile.

    Args:
        case: The run.
        counts: Numbers of new classes; each makes a pile of equal and one of unequal classes.
        baselines: Count by the baselines as well, which take minutes where there are many features.

    Returns:
        One row for each pile: even piles, uneven ones, and a pile without a new class, of which the truth is 0.
    """
    rows, whole = [], case.knowledge.features(case.new.without_labels())
    place = {name: index for index, name in enumerate(case.new.names)}
    labelled = _labelled(case) if baselines else None
    for count in counts:
        even = case.new.of_classes(case.new.class_names[:count])
        for sizes, pile in (("even", even), ("1:10", uneven(even, case.seed))):
            features = whole[[place[name] for name in pile.names]]
            compared = {} if labelled is None else _baselines(case, features, *labelled)
            rows.append({"sizes": sizes, "truth": count, **_counted(case, features), **compared})
    return [*rows, {"sizes": "no new class", "truth": 0, **_counted_among_old(case)}]


def uneven(images: ImageSet, seed: int) -> ImageSet:
    """Thin classes out so that their sizes fall evenly, on a logarithmic scale, to a tenth of the first."""
    assert images.labels is not None
    randomness, classes = generator(seed, "uneven"), len(images.class_names)
    kept = []
    for label in range(classes):
        members = (images.labels == label).nonzero().flatten()
        size = round(len(members) * _SMALLEST_SHARE ** (label / max(1, classes - 1)))
        kept.append(members[torch.randperm(len(members), generator=randomness)[: max(1, size)]])
    return images.select(torch.cat(kept)).of_classes(images.class_names)


def _counted(case: Case, features: Tensor) -> dict[str, Any]:
    began = time.monotonic()
    count = count_new_classes(case.knowledge, features, case.calibration, case.seed)
    seconds = time.monotonic() - began
    found = {"estimate": count.estimate, "low": count.low, "high": count.high, "loose": count.loose}
    return {"images": len(features), **found, "seconds": seconds}


def _counted_among_old(case: Case) -> dict[str, Any]:
    """Sort a pile of known classes first, as `discover` does; where nothing is new, 0 classes are."""
    features = case.knowledge.features(case.old_test.without_labels())
    began = time.monotonic()
    pile = sort_pile(case.knowledge, features, case.calibration, ERROR)
    found = {"estimate": 0, "low": 0, "high": 0, "loose": False}
    if pile.has_new:
        count = count_new_classes(case.knowledge, features[pile.new], case.calibration.after_sorting, case.seed)
        found = {"estimate": count.estimate, "low": count.low, "high": count.high, "loose": count.loose}
    return {"images": len(features), **found, "seconds": time.monotonic() - began}


def _labelled(case: Case) -> tuple[Tensor, Tensor]:
    """Return features and classes of some labelled images."""
    base = case.stages.base
    assert base.labels is not None
    classes = range(len(base.class_names))
    chosen = [(base.labels == label).nonzero().flatten()[:_LABELLED_PER_CLASS] for label in classes]
    labelled = base.select(torch.cat(chosen)).of_classes(base.class_names)
    assert labelled.labels is not None
    return case.knowledge.features(labelled.without_labels()), labelled.labels


def _baselines(case: Case, features: Tensor, known: Tensor, labels: Tensor) -> dict[str, Any]:
    randomness = generator(case.seed, "baselines", device=features.device)
    return {
        "silhouette": silhouette_count(features, randomness),
        "max_acc": max_acc_count(features, known, labels, randomness),
    }


def silhouette_count(features: Tensor, randomness: torch.Generator) -> int:
    """Return the number of clusters of k-means whose mean silhouette is largest, 2 or more.

    Args:
        features: Features of the pile, [N, D].
        randomness: Source of every draw.
    """
    points = _drawn(F.normalize(features.float()), randomness)
    shown = points[:_SILHOUETTE_POINTS].cpu().numpy()
    best, best_count = -1.0, 2
    for count in candidate_counts(len(points), CountSettings()):
        labels = kmeans(points, count, randomness, restarts=3, iterations=50).labels[:_SILHOUETTE_POINTS].cpu().numpy()
        value = float(silhouette_score(shown, labels)) if len(set(labels.tolist())) > 1 else -1.0
        if value > best:
            best, best_count = value, count
    return best_count


def max_acc_count(features: Tensor, known: Tensor, labels: Tensor, randomness: torch.Generator) -> int:
    """Cluster the pile with labelled images of known classes, and keep the count that suits these best.

    This is the estimate of generalised category discovery. It needs labelled images at the time of discovery, which
    are not there; it is given them as a yardstick.

    Args:
        features: Features of the pile, [N, D].
        known: Features of labelled images, [M, D].
        labels: Their classes, [M].
        randomness: Source of every draw.

    Returns:
        Number of clusters less the number of known classes.
    """
    pile = _drawn(F.normalize(features.float()), randomness)
    points = torch.cat([F.normalize(known.float()), pile])
    classes, best, best_count = int(labels.max()) + 1, -1.0, 1
    for count in [1, *candidate_counts(len(pile), CountSettings())]:
        clusters = kmeans(points, classes + count, randomness, restarts=2, iterations=50).labels[: len(known)]
        table = np.zeros((classes + count, classes))
        np.add.at(table, (clusters.cpu().numpy(), labels.cpu().numpy()), 1)
        right = table[linear_sum_assignment(-table)].sum() / len(known)
        if right > best:
            best, best_count = right, count
    return best_count


def _drawn(points: Tensor, randomness: torch.Generator) -> Tensor:
    order = torch.randperm(len(points), generator=randomness, device=randomness.device)
    return points[order[:_POINTS].to(points.device)]
