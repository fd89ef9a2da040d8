"""Estimate of what a stage makes a classifier forget, from stored statistics instead of old images."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import torch
from torch import Tensor

from inlay.discovery.statistics import ClassStatistics

__all__ = [
    "AccuracyEstimate",
    "Correction",
    "DescribedHead",
    "ForgettingEstimate",
    "ScoredFeatures",
    "estimated_accuracy",
    "estimated_forgetting",
    "fit_correction",
    "forgetting_on",
]

Scorer = Callable[[Tensor], Tensor]
DescribedHead = tuple[ClassStatistics, Scorer]
ScoredFeatures = tuple[Tensor, Scorer]

# Between estimates that are closer than this, noise decides the slope.
_DISTINCT = 0.02
_SLOPES = (0.5, 2.0)
_LARGEST_OFFSET = 0.1


@dataclass(frozen=True, eq=False)
class AccuracyEstimate:
    """Accuracy of a head on replayed features.

    Attributes:
        per_class: Share of the samples of each class that the head gets right, [K], float64; nan for an empty class.
        mean: Mean over the classes that are not empty.
        standard_error: Standard error of the mean that comes from drawing samples; what the Gaussians miss of the real
            features is not in it.
    """

    per_class: Tensor
    mean: float
    standard_error: float


@dataclass(frozen=True)
class Correction:
    """What estimated drops taught about true ones: true ≈ slope · estimated + offset."""

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, drop: float) -> float:
        """Return the corrected drop, within -1..1."""
        return min(1.0, max(-1.0, self.slope * drop + self.offset))


@dataclass(frozen=True, eq=False)
class ForgettingEstimate:
    """Estimated loss of accuracy on old classes.

    Attributes:
        drop: Corrected mean drop in accuracy, above 0 where something was forgotten.
        standard_error: Standard error of the drop that comes from drawing samples.
        uncorrected: The drop on the replayed features themselves.
        per_class: That drop for each old class, [K], float64; nan for an empty class.
    """

    drop: float
    standard_error: float
    uncorrected: float
    per_class: Tensor


@torch.no_grad()
def estimated_accuracy(
    statistics: ClassStatistics, head: Scorer, generator: torch.Generator, per_class: int = 1000
) -> AccuracyEstimate:
    """Estimate the accuracy of a head without images, on features drawn from each class.

    Args:
        statistics: Statistics of K classes, of which one or more are not empty.
        head: Turns features [N, D] into the scores of C ≥ K classes, [N, C]; the first K are these classes.
        generator: Source of the features.
        per_class: Features drawn of each class, n, 1 or more.

    Raises:
        ValueError: If the head does not fit the statistics, all classes are empty, or a number is out of its range.
    """
    noise = _noise(statistics, per_class, statistics.mean.shape[1], generator)
    right = _right(statistics, head, noise)
    return AccuracyEstimate(_by_class(right, statistics), right.mean().item(), _standard_error(right))


@torch.no_grad()
def estimated_forgetting(
    before: DescribedHead,
    after: DescribedHead,
    generator: torch.Generator,
    correction: Correction | None = None,
    per_class: int = 1000,
) -> ForgettingEstimate:
    """Estimate the drop in accuracy on old classes from before a stage to after it.

    The same noise makes the features before and after, so that most of it cancels in the difference.

    Args:
        before: Statistics of the K old classes, and the head before the stage, from features to scores.
        after: The same after the stage, statistics moved by the measured drift; those of new classes may follow and
            are left out, whereas the scores of new classes compete with those of old ones.
        generator: Source of the noise.
        correction: What is known about such estimates; None believes them.
        per_class: Features drawn of each class, 1 or more.

    Raises:
        ValueError: If other old classes are empty before than after, or as for `estimated_accuracy`.
    """
    old = before[0]
    moved = _first(after[0], len(old))
    if not torch.equal(old.counts > 0, moved.counts > 0):
        raise ValueError("the same old classes must be empty before and after a stage")
    noise = _noise(old, per_class, max(old.mean.shape[1], moved.mean.shape[1]), generator)
    lost = _right(old, before[1], noise) - _right(moved, after[1], noise)
    drop = lost.mean().item()
    corrected = (correction or Correction())(drop)
    return ForgettingEstimate(corrected, _standard_error(lost), drop, _by_class(lost, old))


@torch.no_grad()
def forgetting_on(
    before: ScoredFeatures, after: ScoredFeatures, labels: Tensor, correction: Correction | None = None
) -> ForgettingEstimate:
    """Tell the drop in accuracy on images that neither head was fitted to, from their features.

    Args:
        before: Features of n images before the stage, [n, D], and the head before it, which turns them into the scores
            of C classes, [n, C].
        after: The same after it; where the stage has trained the network, the features that are expected of it.
        labels: The classes of the images, [n], in 0..C-1.
        correction: What is known about such estimates; None believes them, as it should where features are not
            expected but measured.

    Returns:
        The drop, its standard error and that of each class.

    Raises:
        ValueError: If there are no images, or one has no class.
    """
    shapes = {features.shape[:1] for features, _ in (before, after)} | {labels.shape}
    if len(labels) == 0 or len(shapes) > 1:
        raise ValueError(
            f"need features [n, D] and labels [n]; got {before[0].shape}, {after[0].shape}, {labels.shape}"
        )
    right = [(head(features).argmax(dim=1) == labels).double() for features, head in (before, after)]
    lost = right[0] - right[1]
    counts = torch.bincount(labels).double()
    per_class = torch.zeros_like(counts).index_add_(0, labels, lost) / counts
    drop, error = lost.mean().item(), (lost.var(correction=0) / len(lost)).sqrt().item()
    return ForgettingEstimate((correction or Correction())(drop), error, drop, per_class)


def fit_correction(pairs: Sequence[tuple[float, float]]) -> Correction:
    """Learn from known cases how true drops follow from estimated ones.

    The slope is the median of the slopes between cases whose estimates differ by 0.02 or more, within 0.5 to 2; with
    fewer than three such slopes it is 1. The offset is the median of true - slope · estimated, within ±0.1. Medians
    and bounds keep a few odd cases from deciding. No cases give the identity.

    Args:
        pairs: Estimated and true drop of each case.

    Raises:
        ValueError: If a drop is not finite.
    """
    if not all(math.isfinite(value) for pair in pairs for value in pair):
        raise ValueError("estimated and true drops must be finite")
    if not pairs:
        return Correction()
    distinct = [(a, b) for a, b in combinations(pairs, 2) if abs(a[0] - b[0]) >= _DISTINCT]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in distinct]
    slope = _within(median(slopes), *_SLOPES) if len(slopes) >= 3 else 1.0
    offset = _within(median(true - slope * estimated for estimated, true in pairs), -_LARGEST_OFFSET, _LARGEST_OFFSET)
    return Correction(float(slope), float(offset))


def _within(value: float, low: float, high: float) -> float:
    return min(high, max(low, value))


def _noise(statistics: ClassStatistics, per_class: int, size: int, generator: torch.Generator) -> Tensor:
    """Standard normal numbers for the classes that are not empty, [K', n, size]."""
    if per_class < 1 or statistics.present == 0:
        raise ValueError(
            f"an estimate needs a class that is not empty and samples of it; "
            f"got {statistics.present} classes and {per_class} samples"
        )
    noise = torch.randn(statistics.present, per_class, size, generator=generator, device=generator.device)
    return noise.to(statistics.mean)


def _right(statistics: ClassStatistics, head: Scorer, noise: Tensor) -> Tensor:
    """Whether the head is right on each sample, float64 [K', n] of 0 and 1."""
    classes, size = statistics.mean.shape
    features, labels = statistics.features_at(noise[:, :, :size])
    scores = head(features)
    if scores.ndim != 2 or len(scores) != len(features) or scores.shape[1] < classes:
        raise ValueError(f"a head of {classes} classes or more gives scores [N, C]; got {tuple(scores.shape)}")
    return (scores.argmax(dim=1) == labels).double().view(noise.shape[:2])


def _by_class(values: Tensor, statistics: ClassStatistics) -> Tensor:
    """Mean of the values [K', n] of each class, [K], nan for empty classes."""
    means = values.new_full((len(statistics),), torch.nan)
    means[statistics.counts > 0] = values.mean(dim=1)
    return means


def _standard_error(values: Tensor) -> float:
    """Standard error of the mean of [K', n] values, n drawn of each of K' fixed classes."""
    classes, drawn = values.shape
    variances = values.var(dim=1, correction=0)
    return (variances.sum() / drawn).sqrt().item() / classes


def _first(statistics: ClassStatistics, count: int) -> ClassStatistics:
    if len(statistics) < count:
        raise ValueError(f"after a stage there must be statistics of all {count} old classes; got {len(statistics)}")
    kept = statistics.tensors()
    return ClassStatistics.from_tensors(kept | {name: kept[name][:count] for name in statistics.by_class})
