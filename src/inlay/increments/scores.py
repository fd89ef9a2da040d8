"""How well all classes seen are told apart after a stage."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn

from inlay.engine.feed import feed_of
from inlay.engine.inference import features_of
from inlay.increments.course import Course, Standing
from inlay.increments.nearest_mean import NearestMean, class_means

__all__ = ["CourseScores", "StageScores", "score_stage", "summarise"]


@dataclass(frozen=True)
class StageScores:
    """Accuracies on the test images of all classes seen, as fractions.

    Attributes:
        cnn: By the head.
        nme: By the nearest mean of the images kept of each class; None if none are kept.
        groups: By the head, on the classes of each stage alone.
    """

    cnn: float
    nme: float | None
    groups: tuple[float, ...]


@dataclass(frozen=True)
class CourseScores:
    """What is said of all stages together.

    Attributes:
        average: Mean accuracy over the stages, the base stage included.
        last: Accuracy after the last stage.
        forgetting: Mean over the stages but the last of how far the accuracy on their classes has fallen from its best
            to the end.
    """

    average: float
    last: float
    forgetting: float


def score_stage(course: Course, standing: Standing) -> StageScores:
    """Score what is known after a stage on the test images of all classes seen."""
    seen = course.seen(standing.index)
    rows = torch.nonzero(course.test_labels < seen).flatten()
    labels = course.test_labels[rows]
    device = next(standing.classifier.parameters()).device
    feed = feed_of(course.test[rows], device)
    right = features_of(standing.scored, feed, course.form.prepare).argmax(dim=1).cpu() == labels
    starts = [0, *(course.seen(index) for index in range(standing.index + 1))]
    groups = [right[(labels >= low) & (labels < high)] for low, high in itertools.pairwise(starts)]
    nearest = None
    if len(standing.memory.rows):
        features = features_of(standing.scored.describing, feed, course.form.prepare)
        nearest = _fraction(_nearest_mean(course, standing)(features).argmax(dim=1).cpu() == labels)
    return StageScores(_fraction(right), nearest, tuple(_fraction(group) for group in groups))


def _nearest_mean(course: Course, standing: Standing) -> nn.Module:
    network, memory = standing.scored.describing, standing.memory
    device = next(standing.classifier.parameters()).device
    kept = course.train[memory.rows]
    features, flipped = (
        features_of(network, feed_of(pixels, device), course.form.prepare) for pixels in (kept, kept.flip(3))
    )
    return NearestMean(class_means(features, memory.labels.to(device), course.seen(standing.index), flipped))


def _fraction(right: Tensor) -> float:
    return float(right.double().mean())


def summarise(stages: Sequence[StageScores], head: str = "cnn") -> CourseScores | None:
    """Sum up the stages of a course by one of the two heads; None if that has no scores.

    Args:
        stages: Scores after each stage, the base stage first.
        head: "cnn" or "nme"; the forgetting is that of "cnn".
    """
    curve = [getattr(stage, head) for stage in stages]
    if any(value is None for value in curve):
        return None
    last = stages[-1].groups
    falls = [max(stage.groups[index] for stage in stages[index:]) - last[index] for index in range(len(stages) - 1)]
    return CourseScores(fmean(curve), curve[-1], fmean(falls) if falls else 0.0)
