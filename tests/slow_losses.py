"""The losses of the paper written with loops over numbers, in Python's double precision."""

import math
from collections.abc import Sequence

from torch import Tensor

__all__ = [
    "contrastive",
    "cosine",
    "cross_entropy",
    "distillation",
    "regularization",
    "self_training",
    "softmax",
    "triplet",
]

Row = Sequence[float]


def _rows(values: Tensor) -> list[list[float]]:
    rows: list[list[float]] = values.detach().double().tolist()
    return rows


def cosine(first: Row, second: Row) -> float:
    product = sum(a * b for a, b in zip(first, second, strict=True))
    return product / math.sqrt(sum(a * a for a in first)) / math.sqrt(sum(b * b for b in second))


def softmax(scores: Row) -> list[float]:
    exponentials = [math.exp(score - max(scores)) for score in scores]
    return [value / sum(exponentials) for value in exponentials]


def cross_entropy(logits: Tensor, labels: Sequence[int]) -> float:
    rows = _rows(logits)
    return sum(-math.log(softmax(row)[label]) for row, label in zip(rows, labels, strict=True)) / len(rows)


def contrastive(first: Tensor, second: Tensor, temperature: float) -> float:
    """Eq. 1 over all 2B views: only the anchor is left out of its denominator."""
    views, count = _rows(first) + _rows(second), len(first)
    total = 0.0
    for anchor in range(2 * count):
        partner = (anchor + count) % (2 * count)
        others = [other for other in range(2 * count) if other != anchor]
        values = {other: math.exp(cosine(views[anchor], views[other]) / temperature) for other in others}
        total -= math.log(values[partner] / sum(values.values()))
    return total / (2 * count)


def distillation(current: Tensor, frozen: Tensor) -> float:
    """Eq. 2 with a plus sign, between the whole batches as normalised vectors."""
    first, second = (_normalised([value for row in _rows(part) for value in row]) for part in (current, frozen))
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) + 1e-12)


def self_training(joint: Tensor, novel: Tensor, old_classes: int) -> float:
    """Eq. 3 without its division by the number of classes."""
    labels = [old_classes + row.index(max(row)) for row in _rows(novel)]
    return cross_entropy(joint, labels)


def triplet(anchor: Tensor, other: Tensor, features: Tensor, margin: float, divisor: int) -> float:
    """Eq. 4 as a hinge, on novel logits; neighbours are chosen by the features."""
    anchors, others = [softmax(row) for row in _rows(anchor)], [softmax(row) for row in _rows(other)]
    places = _rows(features)
    total = 0.0
    for index, probabilities in enumerate(anchors):
        similarity = {j: cosine(places[index], places[j]) for j in range(len(places)) if j != index}
        nearest, farthest = max(similarity, key=similarity.__getitem__), min(similarity, key=similarity.__getitem__)
        to_nearest, to_farthest = (
            sum((a - b) ** 2 for a, b in zip(probabilities, others[j], strict=True)) / divisor
            for j in (nearest, farthest)
        )
        total += max(0.0, to_nearest - to_farthest + margin)
    return total / len(anchors)


def regularization(novel: Tensor) -> float:
    """Eq. 5 with the sign that prevents collapse: log K minus the entropy of the mean probability."""
    probabilities = [softmax(row) for row in _rows(novel)]
    mean: list[float] = [sum(column) / len(probabilities) for column in zip(*probabilities, strict=True)]
    return math.log(len(mean)) + sum(p * math.log(p) for p in mean)


def _normalised(values: Row) -> list[float]:
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]
