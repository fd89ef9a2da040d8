"""What is shown of each class of a stage, and the map of its images."""

from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.engine.randomness import generator
from inlay.registry import ClassEntry
from inlay.review.server import stage_view
from inlay.review.stage import DecidedStage

__all__ = ["ClassCard", "class_cards", "classes_of_points", "map_places", "plane_of"]

_SHOWN = 8
_POINTS = 20_000


@dataclass(frozen=True)
class ClassCard:
    """A class of the stage that is still predicted.

    Attributes:
        entry: The class.
        nearest_old: The class of earlier stages whose mean is nearest; None if there is none.
        nearest_new: The other class of the stage whose mean is nearest; None if there is none.
        typical: Images nearest to the mean of the class, the nearest first.
        doubtful: Images that are nearly another class, the most doubtful first.
        missing: Number of its images that are gone or have changed.
        may_split: Whether it can be split.
    """

    entry: ClassEntry
    nearest_old: ClassEntry | None
    nearest_new: ClassEntry | None
    typical: tuple[int, ...]
    doubtful: tuple[int, ...]
    missing: int
    may_split: bool


def class_cards(stage: DecidedStage) -> list[ClassCard]:
    """Return a card for each class of a stage that is still predicted, in the order of ids."""
    return [_card(stage, entry) for entry in stage.after.registry.of_stage(stage.stage) if entry.is_active]


def map_places(stage: DecidedStage) -> list[int]:
    """Return the images of the map in order: those that are at hand, at most 20,000."""
    found = stage.images.found
    if len(found) > _POINTS:
        chosen = torch.randperm(len(found), generator=generator(stage.before.seed, "map"))[:_POINTS]
        found = found[chosen.sort().values]
    return found.tolist()


def plane_of(stage: DecidedStage) -> Tensor:
    """Return where the images of the map are in the plane, [n, 2] within -1..1."""
    return stage_view.plane(stage.features[map_places(stage)])


def classes_of_points(stage: DecidedStage) -> list[int | None]:
    """Return the class of each image of the map; None for images of rejected classes."""
    owner = {image: id for id, images in stage.members.items() for image in images}
    return [owner.get(image) for image in map_places(stage)]


def _card(stage: DecidedStage, entry: ClassEntry) -> ClassCard:
    images = stage.present(entry.id)
    typical: list[int] = []
    doubtful: list[int] = []
    if images:
        features = stage.features[images]
        scores = stage.after.scores(features.to(stage.after.device)).cpu()
        typical = stage_view.typical(features, _SHOWN)
        doubtful = stage_view.doubtful(scores, entry.id, _SHOWN)
    others = [other for other in stage.after.registry.active() if other.id != entry.id]
    return ClassCard(
        entry=entry,
        nearest_old=_nearest(stage, entry, [other for other in others if other.stage < stage.stage]),
        nearest_new=_nearest(stage, entry, [other for other in others if other.stage == stage.stage]),
        typical=tuple(images[row] for row in typical),
        doubtful=tuple(images[row] for row in doubtful),
        missing=stage.missing(entry.id),
        may_split=stage.may_split(entry.id),
    )


def _nearest(stage: DecidedStage, entry: ClassEntry, others: list[ClassEntry]) -> ClassEntry | None:
    id = stage_view.nearest(stage.after.statistics.mean.cpu(), entry.id, [other.id for other in others])
    return None if id is None else list(stage.after.registry)[id]
