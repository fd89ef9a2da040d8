"""Settings of the loss terms of the systems that the paper compares with, one frozen dataclass each."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "ClusteringSettings",
    "ConsistencySettings",
    "NeighbourhoodSettings",
    "PairSettings",
    "RankingSettings",
    "SoftenedSettings",
]

_POSITIVE = {"positive": True}


@dataclass(frozen=True)
class PairSettings:
    """Pairs of images that should share a class: AutoNovel, NCL, FRoST.

    Attributes:
        weight: Weight in the total loss.
        rule: What makes a pair: "rank": the same largest features; "cosine": a similarity above a threshold.
        largest: With "rank": number of largest features.
        threshold: With "cosine": the least similarity.
    """

    weight: float = 0.0
    rule: Literal["rank", "cosine"] = "rank"
    largest: int = field(default=5, metadata=_POSITIVE)
    threshold: float = field(default=0.95, metadata={"maximum": 1})


@dataclass(frozen=True)
class ConsistencySettings:
    """Agreement of the novel probabilities of two views.

    Attributes:
        weight: Weight once ramped up; the loss is a mean over classes, so this is large.
        ramp: Fraction of the stage over which the weight rises.
    """

    weight: float = 0.0
    ramp: float = 0.25


@dataclass(frozen=True)
class NeighbourhoodSettings:
    """Neighbours among past features as positives: NCL.

    Attributes:
        weight: Weight from the second epoch on; the first fills the queue.
        queue: Number of past features.
        temperature: Temperature of the similarities.
        share: Part of the target on the other view of the image; the rest is spread over the neighbours.
        published_ranking: Let the other view compete with the neighbours for a place, as in the published code.
    """

    weight: float = 0.0
    queue: int = field(default=2000, metadata=_POSITIVE)
    temperature: float = field(default=0.05, metadata=_POSITIVE)
    share: float = field(default=0.2, metadata={"maximum": 1})
    published_ranking: bool = True


@dataclass(frozen=True)
class ClusteringSettings:
    """Student-t assignments taught by their own sharpened form: DTC, ResTune.

    Attributes:
        weight: Weight in the total loss.
        mean: "elements" divides by images and classes, as in the published code; "samples" by images.
        refresh: Fraction of the stage after which the targets are made anew.
    """

    weight: float = 0.0
    mean: Literal["elements", "samples"] = "elements"
    refresh: float = field(default=0.05, metadata={"maximum": 1})


@dataclass(frozen=True)
class RankingSettings:
    """Pairs that the old head finds most and least alike: ResTune.

    Attributes:
        weight: Weight in the total loss.
        extremes: Most and least similar images of each image.
    """

    weight: float = 0.0
    extremes: int = field(default=10, metadata=_POSITIVE)


@dataclass(frozen=True)
class SoftenedSettings:
    """Softened predictions of the old head held where they were: learning without forgetting, in ResTune.

    Attributes:
        weight: Weight in the total loss.
        temperature: Temperature of the softening.
    """

    weight: float = 0.0
    temperature: float = field(default=2.0, metadata=_POSITIVE)
