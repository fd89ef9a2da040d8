"""The interval around an estimated number of classes, and what hidden classes teach about its width."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = [
    "UNCALIBRATED",
    "ClassCount",
    "CurvePoint",
    "SpreadPoint",
    "StabilityPoint",
    "Widening",
    "bounded",
    "calibrate",
]


@dataclass(frozen=True)
class CurvePoint:
    """How well one number of clusters fits.

    Attributes:
        k: Number of clusters, 1 or more.
        score: The higher, the better.
    """

    k: int
    score: float


@dataclass(frozen=True)
class SpreadPoint(CurvePoint):
    """The same for an estimate by spread.

    Attributes:
        within: Mean squared distance of the images to the nearest centre.
    """

    within: float


@dataclass(frozen=True)
class StabilityPoint(CurvePoint):
    """The same for an estimate by stability and silhouette.

    Attributes:
        stability: Mean adjusted Rand index between clusterings of random halves, at most 1.
        silhouette: Mean silhouette of the clustering of all images.
        null_silhouette: The same for one Gaussian blob of equal covariance.
    """

    stability: float
    silhouette: float
    null_silhouette: float


@dataclass(frozen=True)
class Widening:
    """How far off estimates were where the truth was known.

    Attributes:
        lower: The truth was seldom below the estimate times this, at most 1.
        upper: The truth was seldom above the estimate times this, at least 1.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        """Check the order of the factors.

        Raises:
            ValueError: If they do not satisfy 0 < lower <= 1 <= upper.
        """
        if not 0 < self.lower <= 1 <= self.upper:
            raise ValueError(f"a widening needs 0 < lower <= 1 <= upper; got {self.lower} and {self.upper}")


UNCALIBRATED = Widening(1 / math.sqrt(2), math.sqrt(2))
"""The widest widening that keeps the upper bound within twice the lower, for callers that hid no class."""


@dataclass(frozen=True)
class ClassCount:
    """An estimated number of classes with its interval.

    Attributes:
        estimate: The number of classes, 1 or more; 1 says that the images form a single blob.
        low: Lower end of the interval, 1 or more.
        high: Upper end of the interval.
        curve: What was measured for each number of clusters; empty where there were too few or no different images.
        loose: Whether calibration asked for an upper end above twice the lower one: the data does not tell the count.
    """

    estimate: int
    low: int
    high: int
    curve: tuple[CurvePoint, ...]
    loose: bool = False

    def times(self, factor: float) -> "ClassCount":
        """Return the count multiplied by how far off such counts are known to be, within the counts that were tried.

        Args:
            factor: What estimates have to be multiplied by, above 0.
        """
        if factor == 1:
            return self
        most = max((point.k for point in self.curve), default=self.high)
        estimate = max(1, min(round(self.estimate * factor), max(most, self.estimate)))
        low, high = max(1, math.floor(self.low * factor)), math.ceil(self.high * factor)
        low, high = bounded(estimate, min(low, estimate), max(high, estimate))
        return replace(self, estimate=estimate, low=low, high=high)

    def widened(self, widening: Widening) -> "ClassCount":
        """Return the count with its interval widened by what calibration taught.

        Ends are rounded outwards. An upper end above twice the lower one stands, and is flagged as loose, only if the
        widening alone spans more than that. Otherwise the interval grows to the factor of two and no further, upwards
        first: k-means misses classes that overlap more often than it splits one.

        Args:
            widening: How far off estimates were.
        """
        # The slack keeps a factor such as 6 / 5 from rounding 5 · 6 / 5 up to 7.
        low = min(self.low, max(1, math.floor(self.estimate * widening.lower + 1e-9)))
        high = max(self.high, math.ceil(self.estimate * widening.upper - 1e-9))
        if widening.upper > 2 * widening.lower * (1 + 1e-9):
            return replace(self, low=low, high=high, loose=high > 2 * low)
        high = max(self.high, min(high, 2 * self.low))
        return replace(self, low=max(low, math.ceil(high / 2)), high=high)


def bounded(estimate: int, low: int, high: int) -> tuple[int, int]:
    """Cut an interval so that it still holds the estimate and its upper end is at most twice the lower.

    Args:
        estimate: The estimate, 1 or more.
        low: Lower end, 1 to the estimate.
        high: Upper end, the estimate or more.

    Returns:
        The two ends, unchanged where they fit.
    """
    if high > 2 * low:
        low = max(low, min(round(estimate / math.sqrt(2)), math.ceil(high / 2)), math.ceil(estimate / 2))
        high = min(high, 2 * low)
    return low, high


def calibrate(errors: Sequence[tuple[int, int]], coverage: float = 0.8) -> Widening:
    """Learn the widening from classes that were hidden and found again.

    The ends are order statistics of true / estimate that leave out half of the rest of the coverage on each side; with
    few trials these are the least and the largest ratio.

    Args:
        errors: True number and estimate of each trial, both 1 or more.
        coverage: Share of trials that the interval should cover, between 0 and 1.

    Returns:
        The factors by which the truth lay below and above the estimate.

    Raises:
        ValueError: If there are no trials, a number is below 1 or the coverage is not between 0 and 1.
    """
    if not errors or min(min(pair) for pair in errors) < 1:
        raise ValueError("calibration needs trials with numbers of 1 or more")
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must lie between 0 and 1; got {coverage}")
    ratios = sorted(true / estimate for true, estimate in errors)
    left_out = max(math.floor((len(ratios) + 1) * (1 - coverage) / 2 + 1e-9) - 1, 0)
    return Widening(min(1.0, ratios[left_out]), max(1.0, ratios[-1 - left_out]))
