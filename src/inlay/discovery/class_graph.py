"""How many classes a pile holds, judged by how long a walk from image to similar image stays among few of them.

Images are joined with their nearest neighbours. With S the normalised adjacency of this graph, tr S^t is the chance of
being back after t steps of a random walk, summed over all starts: where k groups hang together and not with each other
it falls to k and stays there. Groups in pictures are never that clean, so the way in which it falls is compared with
that in piles of known content: see `benchmarks/count_constants.py`.

The walk knows no scale: it asks only which images are neighbours. That is its use where a network has been trained on
neither the known classes nor the new ones.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.discovery.class_count import CountSettings, candidate_counts
from inlay.discovery.class_count_interval import ClassCount, CurvePoint, bounded
from inlay.discovery.statistics import ClassStatistics
from inlay.discovery.whitening import known_metric

__all__ = ["RULE_FILE", "STEPS", "WalkRule", "count_by_graph", "fitted_rule", "log_return_sums", "walk_description"]

Array = npt.NDArray[np.float64]

STEPS = (2, 4, 8, 16, 32, 64, 128)
"""Lengths of the walk, each twice the one before."""

RULE_FILE = "walk_rule.json"
"""Where the fitted rule lies in this package."""

_POINTS = 1500
_DIRECTIONS = 128
_NEIGHBOURS, _NEIGHBOUR_SHARE = 5, 0.01
_SMALLEST = 1e-12
_REACH = 1.5


@dataclass(frozen=True, eq=False)
class WalkRule:
    """From the description of a pile to the logarithm of its number of classes, by what piles of known content taught.

    It is c + Σ_i a_i exp(-|z - z_i|² / (2 · 1.5²)) for the standardised description z and those of the known piles.

    Attributes:
        centre: Mean of each value of a description, [F].
        scale: Standard deviation of each, [F].
        piles: Standardised descriptions of piles of known content, [P, F].
        weights: a, [P].
        constant: c, what is told of a pile unlike all of them.
        error: Typical error of the logarithm, on photographs of other data sets.
    """

    centre: Array
    scale: Array
    piles: Array
    weights: Array
    constant: float
    error: float

    def __call__(self, description: Sequence[float]) -> float:
        """Return the logarithm of the number of classes, which may be anything."""
        place = (np.asarray(description) - self.centre) / self.scale
        return self.constant + float(self.likeness(self.piles, place[None])[:, 0] @ self.weights)

    @staticmethod
    def likeness(first: Array, second: Array) -> Array:
        """Return exp(-|y - z|² / (2 · 1.5²)) for all pairs of standardised descriptions, [P, Q]."""
        distances = np.square(first[:, None] - second[None]).sum(axis=2)
        likeness: Array = np.exp(-distances / (2 * _REACH**2))
        return likeness

    def to_json(self) -> dict[str, Any]:
        """Return plain objects."""
        return {name: np.asarray(value).tolist() for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "WalkRule":
        """Rebuild a rule from what `to_json` returned."""
        centre, scale, piles, weights = (np.array(data[name]) for name in ("centre", "scale", "piles", "weights"))
        return cls(centre, scale, piles, weights, float(data["constant"]), float(data["error"]))


@cache
def fitted_rule() -> WalkRule:
    """Return the rule that counts photographs."""
    text = files("inlay.discovery").joinpath(RULE_FILE).read_text(encoding="utf-8")
    return WalkRule.from_json(json.loads(text))


@torch.no_grad()
def count_by_graph(features: Tensor, known: ClassStatistics, generator: torch.Generator) -> ClassCount:
    """Estimate how many classes there are among images, 1 or more, by walks among them.

    Args:
        features: Features of the unlabelled images, [N, D], by a network that was not trained on the known classes.
        known: Statistics of the known classes in the same features, one or more of them not empty.
        generator: Source of the draw of images, where they are many, on any device.

    Returns:
        The estimate, an interval whose upper end is at most twice the lower, and the curve of log-likelihoods.

    Raises:
        ValueError: If there are no features or one is not finite.
    """
    description = walk_description(features, known, generator)
    if description is None:
        return ClassCount(1, 1, 1, ())
    rule = fitted_rule()
    count = min(max(math.exp(rule(description)), 1.0), len(features) / 2)
    estimate = max(1, round(count))
    low, high = bounded(estimate, max(1, math.floor(count / math.sqrt(2))), math.ceil(count * math.sqrt(2)))
    candidates = [1, *candidate_counts(len(features), CountSettings())]
    curve = (CurvePoint(k, -((math.log(k / count) / rule.error) ** 2) / 2) for k in candidates)
    return ClassCount(estimate, low, high, tuple(curve))


@torch.no_grad()
def walk_description(features: Tensor, known: ClassStatistics, generator: torch.Generator) -> list[float] | None:
    """Describe a pile by walks in the metric of known classes.

    Of more than 1,500 images as many are drawn. Of their places, the 128 directions of greatest variance are kept and
    brought to length 1; then each image is joined with its nearest hundredth of the others, and 5 at least.

    Args:
        features: Features, [N, D].
        known: Statistics of the known classes.
        generator: Source of the draw.

    Returns:
        By how much log tr S^t falls from each length to the next, what is left of it after the last, and the logarithm
        of the number of images; None where images are too few to have neighbours, or do not differ.

    Raises:
        ValueError: If there are no features or one is not finite.
    """
    if features.ndim != 2 or features.numel() == 0 or not torch.isfinite(features).all():
        raise ValueError(f"features must be finite, [N, D] with N and D above 0; got {tuple(features.shape)}")
    order = torch.randperm(len(features), generator=generator, device=generator.device)[:_POINTS]
    chosen = features[order.to(features.device)].float()
    points = (chosen - chosen.mean(dim=0)) @ known_metric(known).to(chosen)
    if len(points) <= _NEIGHBOURS or float(points.square().mean()) < _SMALLEST:
        return None
    _, axes = torch.linalg.eigh(points.T @ points / len(points))
    neighbours = max(_NEIGHBOURS, round(_NEIGHBOUR_SHARE * len(points)))
    sums = log_return_sums(F.normalize(points @ axes[:, -_DIRECTIONS:]), neighbours)
    return [*(before - after for before, after in pairwise(sums)), sums[-1], math.log(len(points))]


def log_return_sums(points: Tensor, neighbours: int) -> list[float]:
    """Return log tr S^t for each of `STEPS`, with S the normalised graph of nearest neighbours.

    An edge weighs 1 where both points are among each other's nearest, and half where one is.

    Args:
        points: Points, [N, d].
        neighbours: Nearest others that a point is joined with, 1 to N - 1.

    Raises:
        ValueError: If the number of neighbours is out of its range.
    """
    if not 1 <= neighbours < len(points):
        raise ValueError(f"each of {len(points)} points needs 1 to {len(points) - 1} neighbours, not {neighbours}")
    distances = torch.cdist(points, points).fill_diagonal_(torch.inf)
    nearest = distances.topk(neighbours, largest=False).indices
    chosen = torch.zeros_like(distances).scatter_(1, nearest, 1.0)
    edges = (chosen + chosen.T) / 2
    scale = edges.sum(dim=1).rsqrt()
    power = scale[:, None] * edges * scale
    sums = []
    for step in STEPS:
        # S is symmetric, so tr S^2t is the sum of the squares of S^t, and each power is the square of the last.
        sums.append(float(power.double().square().sum().log()))
        power = power @ power if step != STEPS[-1] else power
    return sums
