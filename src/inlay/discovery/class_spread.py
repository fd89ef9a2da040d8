"""How many classes a pile holds, judged by how loose classes are that a network was not trained on.

For networks that learned other classes a rule of thumb holds: with W(k) the mean squared distance of images to the
nearest of k centres of k-means, and 2·D that between images of different known classes, at the true number k

    W(k) · k^0.1 ≈ s · D

The spread s is about the same for few and for many classes. It follows roughly from how loose the known classes are
themselves, and hiding classes while there are labels measures how it differs from that. A larger exponent fits the
law better still, but then small errors of s become large ones of k.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.discovery.class_count import CountSettings, candidate_counts
from inlay.discovery.class_count_interval import ClassCount, SpreadPoint, bounded
from inlay.discovery.kmeans import kmeans
from inlay.discovery.statistics import ClassStatistics

__all__ = ["count_by_spread", "relative_spread"]

Array = npt.NDArray[np.float64]

# Fitted to digits and to small natural images, with networks that had learned 3 to 15 other classes.
_EXPONENT = 0.1
_TIGHT_SPREAD = 0.19

# Standard deviation of the logarithm of the spread, and by how much fewer classes are likelier.
_NOISE, _FEWER = 0.12, 0.5
_STEPS = 1000

_DRAWN_PER_CLASS = 60
_SMALLEST = 1e-12


@torch.no_grad()
def count_by_spread(
    features: Tensor,
    known: ClassStatistics,
    generator: torch.Generator,
    correction: float = 1.0,
    settings: CountSettings | None = None,
) -> ClassCount:
    """Estimate how many classes there are among images, 1 or more, from what the known classes look like.

    Args:
        features: Features of the unlabelled images, [N, D]; L2-normalised here.
        known: Statistics of the known classes in the same features, two or more of them not empty.
        generator: Source of every draw, on any device.
        correction: Factor on the expected spread of a class; see `relative_spread`.
        settings: How many images are looked at and which counts are tried; None for the defaults.

    Returns:
        The estimate, an interval whose upper end is at most twice the lower, and the curve of scores.

    Raises:
        ValueError: If there are no features, one is not finite, or fewer than two classes are known.
    """
    settings = settings or CountSettings()
    scaled = _scaled(features, known, generator, settings)
    candidates = [1, *candidate_counts(len(scaled.points), settings)]
    within = _monotone([scaled.within(k, generator) for k in candidates])
    excess = [
        math.log(max(value, _SMALLEST) * k**_EXPONENT / (correction * scaled.expected))
        for k, value in zip(candidates, within, strict=True)
    ]
    count = _likeliest(candidates, excess)
    estimate = max(1, round(count))
    low, high = bounded(estimate, max(1, math.floor(count / math.sqrt(2))), math.ceil(count * math.sqrt(2)))
    scores = _score(np.log(candidates), np.array(excess)).tolist()
    curve = (SpreadPoint(k, score, w) for k, score, w in zip(candidates, scores, within, strict=True))
    return ClassCount(estimate, low, high, tuple(curve))


@torch.no_grad()
def relative_spread(
    features: Tensor,
    known: ClassStatistics,
    classes: int,
    generator: torch.Generator,
    settings: CountSettings | None = None,
) -> float:
    """Measure how much looser classes are than expected, on images of a known number of classes.

    Args:
        features: Features of images of classes that the network was not trained on, [N, D].
        known: Statistics of the classes that it was trained on, two or more of them not empty.
        classes: Number of classes among the images, 1 to N.
        generator: Source of every draw, on any device.
        settings: How many images are looked at; None for the defaults.

    Returns:
        Measured spread divided by the expected one, above 0.

    Raises:
        ValueError: If there are no features, one is not finite, or fewer than two classes are known.
    """
    scaled = _scaled(features, known, generator, settings or CountSettings())
    measured = max(scaled.within(classes, generator), _SMALLEST) * float(classes**_EXPONENT)
    return measured / scaled.expected


@dataclass(frozen=True, eq=False)
class _Scaled:
    """Points of a pile, [n, d], and the mean squared distance to its centre that a new class should have."""

    points: Tensor
    expected: float

    def within(self, k: int, generator: torch.Generator) -> float:
        """Mean squared distance to the nearest of k centres."""
        return kmeans(self.points, k, generator, restarts=3, iterations=30).inertia / len(self.points)


def _scaled(features: Tensor, known: ClassStatistics, generator: torch.Generator, settings: CountSettings) -> _Scaled:
    if features.ndim != 2 or features.numel() == 0 or not torch.isfinite(features).all():
        raise ValueError(f"features must be finite, [N, D] with N and D above 0; got {tuple(features.shape)}")
    if known.present < 2:
        raise ValueError(f"the spread of classes needs two known classes or more; got {known.present}")
    order = torch.randperm(len(features), generator=generator, device=generator.device)[: settings.points]
    pile = F.normalize(features[order.to(features.device)].double())
    drawn = F.normalize(known.sample(_DRAWN_PER_CLASS, generator)[0].double()).to(pile.device)
    axes = _common_axes(pile, drawn, settings.dimensions)
    classes = (drawn @ axes).view(known.present, _DRAWN_PER_CLASS, -1)
    centres = classes.mean(dim=1)
    looseness = float((classes - centres[:, None]).square().sum(dim=2).mean())
    between = float((centres - centres.mean(dim=0)).square().sum() / (known.present - 1))
    distance = max(between + looseness, _SMALLEST)
    # A network that tells few classes apart lays all others close together.
    crowding = (1 - 1 / known.present) ** 2
    spread = crowding * (_TIGHT_SPREAD + looseness / distance)
    points = ((pile - pile.mean(dim=0)) @ axes).float()
    return _Scaled(points, spread * distance)


def _common_axes(pile: Tensor, drawn: Tensor, dimensions: int) -> Tensor:
    """Principal axes of the pile and the known classes, both with equal weight, [D, d]."""
    centred = [points - points.mean(dim=0) for points in (pile, drawn)]
    scatter = sum((points.T @ points / len(points) for points in centred), start=pile.new_zeros(()))
    axes: Tensor = torch.linalg.eigh(scatter).eigenvectors[:, -dimensions:]
    return axes


def _monotone(values: list[float]) -> list[float]:
    """More centres are never further away; k-means does not always find them."""
    return [min(values[: index + 1]) for index in range(len(values))]


def _likeliest(counts: list[int], excess: list[float]) -> float:
    """Return the count of the highest score, also between those tried."""
    logarithms = np.log(counts)
    steps = np.linspace(0, logarithms[-1], _STEPS)
    return float(np.exp(steps[np.argmax(_score(steps, np.interp(steps, logarithms, excess)))]))


def _score(logarithms: Array, excess: Array) -> Array:
    """Log-likelihood of counts, if the logarithm of the spread is known but for noise and fewer classes are likelier.

    Images that are tighter than classes should be speak neither for nor against a count. Where more clusters hardly
    tighten them, many counts would do, and the fewest are the likeliest.
    """
    score: Array = -((np.maximum(excess, 0) / _NOISE) ** 2) / 2 - _FEWER * logarithms
    return score
