"""Labelled stages of small digits that tests of increments share."""

from dataclasses import replace
from typing import Any

from inlay.increments.course import Course, Standing, next_stage
from inlay.increments.increment import System
from inlay.pipeline import Workshop
from tiny_digits import digits

__all__ = ["QUICK", "course", "quick", "standings"]

NAMES = ["0", "1", "2", "3", "4", "5", "6"]
QUICK: dict[str, Any] = {
    "backbone": "resnet8",
    "view": "none",
    "base.epochs": 2,
    "base.batch": 40,
    "stage.epochs": 2,
    "stage.batch": 20,
    "memory.per_class": 4,
    "memory.total": 0,
}


def course(cut: tuple[int, ...] = (3, 2, 2), images: int = 24) -> Course:
    """Seven digits in an order that is not that of their labels."""
    return Course(digits(NAMES, last=images), digits(NAMES, 60, 80), [4, 0, 6, 1, 5, 2, 3], cut)


def quick(system: System, **changes: Any) -> System:
    """A system with quick settings; a double underscore stands for the dot of a path."""
    return replace(system, recipe=system.recipe.changed(QUICK | {k.replace("__", "."): v for k, v in changes.items()}))


def standings(system: System, of: Course | None = None) -> list[Standing]:
    """What is known after each stage."""
    images, found = of or course(), list[Standing]()
    for _ in images.cut:
        found.append(next_stage(system, images, found[-1] if found else None, 0, Workshop()))
    return found
