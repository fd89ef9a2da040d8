"""Estimate of how many classes a pile of unlabelled images holds, from features of a frozen network."""

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.discovery.class_count_interval import ClassCount, StabilityPoint, bounded
from inlay.discovery.kmeans import kmeans

__all__ = ["CountSettings", "candidate_counts", "estimate_class_count"]

# Silhouette and stability enter by their logarithms, which a value of 0 or less must not break.
_FLOOR = 1e-3
# Up to here every count is tried; beyond, steps of this ratio are finer than the estimate itself.
_EVERY_COUNT = 20
_STEP = 1.08
# Counts that are always compared with one blob: 2 to 5.
_FEW_COUNTS = 4
# A blob along one axis has a silhouette near 0.6, which two far classes cannot exceed by a share; from this value of
# the blob's silhouette on the excess that is asked for grows no more.
_LONG_BLOB = 1 / 3


@dataclass(frozen=True)
class CountSettings:
    """How the number of classes is looked for.

    The weights and the threshold were chosen on handwritten digits, with features of networks that had learned other
    digits, and on photographs with ImageNet features.

    Attributes:
        most: Largest count that is tried, 2 or more.
        images_per_class: Counts are tried up to the number of images divided by this, 1 or more.
        dimensions: Principal components that are kept, 1 or more.
        points: Most images that are clustered, drawn at random from more, 2 or more.
        silhouette_points: Most images that the silhouette looks at, 2 or more.
        subsamples: Random halves that are clustered to measure stability, 2 or more.
        count_weight: Weight of log k in the score; the stability of data without structure falls about so.
        silhouette_weight: Weight of the logarithm of the silhouette in the score, next to that of the stability.
        least_excess: The images are one class if no silhouette exceeds that of one Gaussian blob by this share.
        smallest: Clusters below this share of the largest one are not counted.
    """

    most: int = 60
    images_per_class: int = 25
    dimensions: int = 32
    points: int = 5000
    silhouette_points: int = 1000
    subsamples: int = 6
    count_weight: float = 0.2
    silhouette_weight: float = 0.5
    least_excess: float = 0.3
    smallest: float = 0.02

    def __post_init__(self) -> None:
        """Check that every bound is usable.

        Raises:
            ValueError: If a bound is too small.
        """
        twos = (self.most, self.points, self.silhouette_points, self.subsamples)
        if min(twos) < 2 or min(self.images_per_class, self.dimensions) < 1:
            raise ValueError(f"settings of the class count are too small: {self}")


@torch.no_grad()
def estimate_class_count(
    features: Tensor, generator: torch.Generator, settings: CountSettings | None = None
) -> ClassCount:
    """Estimate how many classes there are among images, 1 or more.

    For each count k, k-means clusters all images and random halves of them. The score of k is

        log stability(k) + silhouette_weight · log silhouette(k) + count_weight · log k

    where the stability is the mean adjusted Rand index between the halves, each extended to all images by nearest
    centre. The best k answers, less its tiny clusters; but where no silhouette up to k clearly exceeds that of one
    Gaussian blob of the same covariance, the answer is 1. Each half gives an answer of its own, and the interval spans
    them. Features alone cannot tell a class with parts from several classes, nor two classes that overlap from one.

    Args:
        features: Features of the unlabelled images, [N, D]; L2-normalised here.
        generator: Source of every draw, on any device.
        settings: How to look; None for the defaults.

    Returns:
        The estimate, its interval and the curve of scores.

    Raises:
        ValueError: If there are no features or one is not finite.
    """
    settings = settings or CountSettings()
    if features.ndim != 2 or features.numel() == 0 or not torch.isfinite(features).all():
        raise ValueError(f"features must be finite, [N, D] with N and D above 0; got {tuple(features.shape)}")
    points = _prepared(_drawn(features, settings.points, generator), settings.dimensions)
    candidates = candidate_counts(len(points), settings)
    if not candidates or float(points.square().mean()) < torch.finfo(points.dtype).eps:
        return ClassCount(1, 1, 1, ())
    halves = [_drawn(torch.arange(len(points)), (len(points) + 1) // 2, generator) for _ in range(settings.subsamples)]
    shown = _drawn(torch.arange(len(points)), settings.silhouette_points, generator)
    blob = torch.randn(points.shape, generator=generator, device=generator.device).to(points) * points.std(dim=0)
    distances, blob_distances = _distances(points[shown]), _distances(blob[shown])
    trials = []
    for k in candidates:
        whole = kmeans(points, k, generator, restarts=4, iterations=30).labels
        labels = [_extended(points, half, k, generator) for half in halves]
        null = kmeans(blob, k, generator, restarts=1, iterations=30).labels
        trials.append(
            _Trial(
                k=k,
                counted=_counted(whole, settings.smallest),
                stabilities=_stabilities(labels),
                silhouette=_silhouette(distances, whole[shown]),
                silhouettes=[_silhouette(distances, each[shown]) for each in labels],
                null=_silhouette(blob_distances, null[shown]),
            )
        )
    return _concluded(trials, settings)


def candidate_counts(images: int, settings: CountSettings) -> list[int]:
    """List the counts from 2 on that are tried for a number of images; none where two clusters make no sense.

    Args:
        images: Number of images that are clustered.
        settings: Bounds of the counts.
    """
    most = min(settings.most, max(2, images // settings.images_per_class), images // 3)
    counts = list(range(2, min(most, _EVERY_COUNT) + 1))
    while counts and (following := round(counts[-1] * _STEP)) <= most and counts[-1] >= _EVERY_COUNT:
        counts.append(following)
    return counts


@dataclass(frozen=True)
class _Trial:
    """What was measured for one count: for all images, and one value for each half."""

    k: int
    counted: int
    stabilities: list[float]
    silhouette: float
    silhouettes: list[float]
    null: float

    @property
    def stability(self) -> float:
        return float(np.mean(self.stabilities))

    def score(self, stability: float, silhouette: float, settings: CountSettings) -> float:
        shape = settings.silhouette_weight * math.log(max(silhouette, _FLOOR))
        return math.log(max(stability, _FLOOR)) + shape + settings.count_weight * math.log(self.k)


def _concluded(trials: list[_Trial], settings: CountSettings) -> ClassCount:
    scores = [trial.score(trial.stability, trial.silhouette, settings) for trial in trials]
    estimate = _answer(trials, scores, [trial.silhouette for trial in trials], settings)
    answers = [estimate]
    for half in range(settings.subsamples):
        silhouettes = [trial.silhouettes[half] for trial in trials]
        half_scores = [trial.score(trial.stabilities[half], trial.silhouettes[half], settings) for trial in trials]
        answers.append(_answer(trials, half_scores, silhouettes, settings))
    low, high = bounded(estimate, min(answers), max(answers))
    curve = (
        StabilityPoint(trial.k, score, trial.stability, trial.silhouette, trial.null)
        for trial, score in zip(trials, scores, strict=True)
    )
    return ClassCount(estimate, low, high, tuple(curve))


def _answer(trials: list[_Trial], scores: list[float], silhouettes: list[float], settings: CountSettings) -> int:
    """Return the count of the best score, or 1 where no silhouette up to it stands out from that of one blob."""
    best = scores.index(max(scores))
    # Clusters at a low count are the surest sign of structure, also where the best count is lower still.
    looked_at = slice(max(best + 1, _FEW_COUNTS))
    pairs = zip(trials[looked_at], silhouettes[looked_at], strict=True)
    stands_out = any(
        silhouette - trial.null >= settings.least_excess * min(max(trial.null, _FLOOR), _LONG_BLOB)
        for trial, silhouette in pairs
    )
    return trials[best].counted if stands_out else 1


def _drawn(rows: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Draw at most so many rows, in random order."""
    order = torch.randperm(len(rows), generator=generator, device=generator.device)
    return rows[order[:most].to(rows.device)]


def _prepared(features: Tensor, dimensions: int) -> Tensor:
    """Normalise features to length 1 and project them onto their principal components, [N, d]."""
    directions = F.normalize(features.double())
    centred = directions - directions.mean(dim=0)
    axes = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -dimensions:]
    projected: Tensor = (centred @ axes).float()
    return projected


def _extended(points: Tensor, half: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Cluster a half of the points and label all points by nearest centre, [N]."""
    part = points[half.to(points.device)]
    centroids = kmeans(part, k, generator, restarts=3, iterations=30).centroids
    labels: Tensor = torch.cdist(points, centroids).argmin(dim=1)
    return labels


def _counted(labels: Tensor, smallest: float) -> int:
    sizes = torch.bincount(labels)
    return int((sizes > sizes.max() * smallest).sum())


def _stabilities(labels: list[Tensor]) -> list[float]:
    """Return the mean adjusted Rand index of each clustering with the others."""
    from sklearn.metrics import adjusted_rand_score  # takes seconds to import, so only when it is needed

    hosted = [each.cpu().numpy() for each in labels]
    agreement = np.zeros((len(hosted), len(hosted)))
    for first, second in combinations(range(len(hosted)), 2):
        agreement[first, second] = agreement[second, first] = adjusted_rand_score(hosted[first], hosted[second])
    means: list[float] = (agreement.sum(axis=1) / (len(hosted) - 1)).tolist()
    return means


def _distances(points: Tensor) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    found = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").cpu().numpy()
    np.fill_diagonal(found, 0)
    return found


def _silhouette(distances: "np.ndarray[tuple[int, int], np.dtype[np.float32]]", labels: Tensor) -> float:
    """Return the mean silhouette; 0, that of no structure, where it is not defined."""
    hosted = labels.cpu().numpy()
    if not 1 < len(np.unique(hosted)) < len(hosted):
        return 0.0
    from sklearn.metrics import silhouette_score  # takes seconds to import, so only when it is needed

    return float(silhouette_score(distances, hosted, metric="precomputed"))
