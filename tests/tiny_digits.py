"""Scikit-learn's 8x8 digits and settings under which a whole run takes seconds."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from inlay.data import ImageSet

__all__ = ["QUICK", "News", "digits"]

QUICK: dict[str, Any] = {
    "base.training.epochs": 2,
    "base.training.batch": 40,
    "base.view": "glyph",
    "base.contrastive_view": "glyph",
    "training.epochs": 2,
    "training.batch": 20,
    "first_view": "glyph",
    "second_view": "glyph",
    "classifier.refit_per_class": 30,
}


@functools.cache
def _all_digits() -> ImageSet:
    found = load_digits()
    return ImageSet.from_arrays((found.images * 15).astype(np.uint8), found.target)


def digits(names: Sequence[str], first: int = 0, last: int = 40) -> ImageSet:
    """Labelled images first..last-1 of each of the named digits."""
    chosen = _all_digits().of_classes(names)
    assert chosen.labels is not None
    places = [(chosen.labels == label).nonzero().flatten().tolist()[first:last] for label in range(len(names))]
    return chosen.select([place for class_places in places for place in class_places])


class News:
    """Keeps the notes and the work it is told of."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.losses: list[dict[str, float]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def start(self, name: str, total: int, done: int) -> None:
        pass

    def step(self, done: int, losses: Mapping[str, float]) -> None:
        self.losses.append(dict(losses))

    def finish(self) -> None:
        pass
