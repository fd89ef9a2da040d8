"""A course of labelled stages: the images of each, and what is known after it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inlay.data.images import ImageSet
from inlay.data.normalisation import normalisation_of
from inlay.engine.randomness import derive_seed
from inlay.engine.work import Work
from inlay.engine.world import World
from inlay.errors import InlayError
from inlay.increments.classifier import Classifier
from inlay.increments.increment import Increment, Learned, System, Train
from inlay.increments.memory import Memory
from inlay.knowledge import InputForm
from inlay.pipeline import Workshop
from inlay.settings import TrainingSettings

__all__ = ["Course", "Standing", "after_stage", "later_pace", "next_stage", "stage_task"]


class Course:
    """Labelled images of classes that come in stages; labels are numbered in the order of the classes.

    Args:
        train: Training images.
        test: Test images of the same classes.
        order: Labels in the order in which they come.
        cut: Number of classes of each stage, the base stage first.

    Attributes:
        train: Training images, uint8 [N, C, H, W].
        train_labels: Their classes, int64 [N].
        test: Test images, uint8 [M, C, H, W].
        test_labels: Their classes, int64 [M].
        cut: Number of classes of each stage.
        form: What images the network takes; normalised by the images of the base stage.

    Raises:
        InlayError: If the stages need more classes than there are.
    """

    def __init__(self, train: ImageSet, test: ImageSet, order: Sequence[int], cut: Sequence[int]) -> None:
        if sum(cut) > len(order) or min(cut) < 1:
            raise InlayError(f"Stages of {', '.join(map(str, cut))} classes cannot be cut from {len(order)} classes.")
        assert train.labels is not None and test.labels is not None
        places = torch.empty(len(order), dtype=torch.int64)
        places[torch.tensor(list(order))] = torch.arange(len(order))
        self.cut = tuple(cut)
        self.train, self.train_labels = train.images, places[train.labels]
        self.test, self.test_labels = test.images, places[test.labels]
        base = torch.nonzero(self.train_labels < cut[0]).flatten()
        pixels = normalisation_of(train.select(base).level_counts())
        self.form = InputForm(train.size, train.channels, pixels.mean, pixels.std)

    def seen(self, index: int) -> int:
        """Return the number of classes after a stage."""
        return sum(self.cut[: index + 1])

    def rows(self, index: int) -> Tensor:
        """Return which training images a stage brings, int64."""
        last = self.seen(index)
        return torch.nonzero((self.train_labels >= last - self.cut[index]) & (self.train_labels < last)).flatten()


@dataclass(frozen=True, eq=False)
class Standing:
    """What is known after a stage.

    Attributes:
        index: Number of the stage.
        classifier: The classifier, which the next stage begins with.
        scored: The one that is scored; mostly the same.
        memory: Training images that are kept.
        extras: What the system has measured for the next stage.
        seconds: Time that the stage took.
        merge_difference: By how much the scores of branches and of the merged network differ at most; None without
            branches.
    """

    index: int
    classifier: Classifier
    scored: Classifier
    memory: Memory
    extras: Mapping[str, Tensor]
    seconds: float
    merge_difference: float | None = None


def next_stage(system: System, course: Course, before: Standing | None, seed: int, workshop: Workshop) -> Standing:
    """Learn the stage after another, or the base stage.

    Args:
        system: How.
        course: The images.
        before: What is known; None begins.
        seed: Seed of the run.
        workshop: Where it is computed.

    Raises:
        InlayError: If training is stopped or diverges.
    """
    began = time.monotonic()
    task = stage_task(system, course, before, seed, workshop.device)
    learned = system.learn(task, _trainer(task, workshop))
    return after_stage(system, course, task, before, learned, time.monotonic() - began)


def after_stage(
    system: System, course: Course, task: Increment, before: Standing | None, learned: Learned, seconds: float
) -> Standing:
    """Measure what the next stage needs, and choose the images that are kept by the classifier that is scored.

    Args:
        system: How the stage was learned.
        course: The images.
        task: The inputs of the stage.
        before: What was known before it; None for the base stage.
        learned: What was learned.
        seconds: Time that it took.
    """
    classifier, scored = learned.classifier, learned.scored or learned.classifier
    rows = course.rows(task.index)
    memory = Memory() if before is None else before.memory
    new = task.of_new_classes()
    count = system.recipe.memory.share(task.classes)
    memory = memory.extended(new.features(scored.describing), new.labels, rows, count)
    difference = None if learned.merge is None else learned.merge.max_abs_diff
    return Standing(task.index, classifier, scored, memory, system.describe(task, classifier), seconds, difference)


def stage_task(system: System, course: Course, before: Standing | None, seed: int, device: torch.device) -> Increment:
    """Return the inputs of the stage after another, or of the base stage.

    Args:
        system: How it is learned.
        course: The images.
        before: What is known; None begins.
        seed: Seed of the run.
        device: Where it is computed.
    """
    index = 0 if before is None else before.index + 1
    # New images first, so that those of new classes stand in the order of the course.
    rows = torch.cat([course.rows(index), Memory().rows if before is None else before.memory.rows])
    return Increment(
        index=index,
        old_classes=course.seen(index) - course.cut[index],
        new_classes=course.cut[index],
        pixels=course.train[rows],
        labels=course.train_labels[rows].to(device),
        before=None if before is None else before.classifier,
        extras={} if before is None else before.extras,
        recipe=system.recipe,
        form=course.form,
        seed=derive_seed(seed, "increment", index),
    )


def _trainer(task: Increment, workshop: Workshop) -> Train:
    def train(name: str, images: Increment, work: Work, settings: TrainingSettings) -> None:
        if settings.epochs == 0:
            return
        title = f"stage {task.index}, {name}" if task.index else f"the base stage, {name}"
        seed = derive_seed(task.seed, name)
        paced = settings if task.index == 0 else later_pace(settings, task.device)
        workshop.loop_maker(title, paced, images.feed, seed, "")(work, None).run()

    return train


def later_pace(settings: TrainingSettings, device: torch.device) -> TrainingSettings:
    """Return the settings of a later stage with the pace that suits it, if they leave it open.

    On one GPU its steps are recorded and never compiled: each stage would compile its network anew, for training that
    is over sooner. The base stage is longer, and shared by runs.

    Args:
        settings: How it is trained.
        device: Where.
    """
    if settings.pace != "auto" or device.type != "cuda" or World.current().parallel:
        return settings
    return replace(settings, pace="graph")
