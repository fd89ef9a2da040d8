"""Trained learners that tests share, and what is compared between them."""

import functools
import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import inlay
from inlay import Learner
from inlay.data import ImageSet
from tiny_digits import QUICK, News, digits

__all__ = [
    "BASE",
    "FIRST",
    "SECOND",
    "SEEN",
    "base_learner",
    "contents",
    "fresh",
    "quick_learner",
    "reopened",
    "same_weights",
    "two_stages",
]

BASE, FIRST, SECOND = ["0", "1", "2"], ["3", "4"], ["5", "6"]
SEEN = [*BASE, *FIRST, *SECOND]


def quick_learner(**options: Any) -> Learner:
    """A learner with quick settings, seed 7 unless told otherwise."""
    given = {"backbone": "resnet8", "settings": QUICK, "device": "cpu", "seed": 7, **options}
    return Learner(**given)


def fresh(names: list[str]) -> ImageSet:
    """Labelled images that no learner was trained on."""
    return digits(names, 60, 80)


@functools.cache
def base_learner() -> Learner:
    """A learner of the base classes, to be reopened and not to be changed."""
    learner = quick_learner()
    learner.fit(digits(BASE))
    return learner


@functools.cache
def two_stages() -> Learner:
    """A learner after two stages, to be reopened and not to be changed; it was given labels in the first."""
    learner = quick_learner(progress=News())
    learner.fit(digits(BASE))
    learner.discover(digits(FIRST), classes=2)
    learner.discover(digits(SECOND).without_labels(), classes=2)
    return learner


def reopened(learner: Learner, folder: Path, **options: Any) -> tuple[Learner, News]:
    """The same run, saved to a folder and loaded from it."""
    news = News()
    learner.save(folder)
    return inlay.load(folder, device="cpu", progress=news, **options), news


def same_weights(first: Learner, second: Learner) -> bool:
    """Whether networks, heads and statistics agree bit for bit."""
    one, other = _tensors(first), _tensors(second)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def contents(folder: Path) -> dict[str, str]:
    """Every file of a run but the work under way."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock" and "progress" not in path.relative_to(folder).parts
    }


def _tensors(learner: Learner) -> dict[str, Tensor]:
    return learner.knowledge.to_files()[0]
