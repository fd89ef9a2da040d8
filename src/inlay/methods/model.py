"""The model under training in a discovery stage, and what it says of a batch."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from inlay.data.augment import augmentation
from inlay.discovery.neighbours import draw_partners, nearest_neighbours
from inlay.engine.loop import Batch
from inlay.engine.precision import forward
from inlay.methods.task import StageTask

__all__ = ["StageModel", "StageOutputs", "Views"]


@dataclass(frozen=True, eq=False)
class StageModel:
    """The parts that learn.

    Attributes:
        trunk: Hybrid network (or what takes its place) from images to features [B, D].
        novel_head: Head over the K new classes; None if the joint head's new outputs play its part.
        joint_head: Linear head over all O + K classes.
        projector: Projection head of the contrastive loss.
    """

    trunk: nn.Module
    novel_head: nn.Module | None
    joint_head: nn.Linear
    projector: nn.Module

    def modules(self) -> dict[str, nn.Module]:
        """Return the parts by name."""
        parts = {"trunk": self.trunk, "joint_head": self.joint_head, "projector": self.projector}
        return parts if self.novel_head is None else {**parts, "novel_head": self.novel_head}

    def novel_logits(self, features: Tensor, old_classes: int) -> Tensor:
        """Return the scores of the new classes, [B, K]."""
        if self.novel_head is None:
            joint: Tensor = self.joint_head(features)
            return joint[:, old_classes:]
        scores: Tensor = self.novel_head(features)
        return scores


class Views:
    """Draws the two augmented views of each image of a batch.

    Args:
        task: The stage; with a partner share, the second view may show a near neighbour of the image.
    """

    def __init__(self, task: StageTask) -> None:
        self._task = task
        self._first = augmentation(task.settings.first_view)
        self._second = augmentation(task.settings.second_view)
        self._neighbours: Tensor | None = None
        if task.settings.assignment.partner_share > 0:
            count = min(task.settings.assignment.neighbours, len(task.images) - 1)
            self._neighbours = nearest_neighbours(task.frozen_features, count)

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the first and the second view as network inputs, each [B, C, H, W]."""
        partners = batch.indices
        if self._neighbours is not None:
            share = self._task.settings.assignment.partner_share
            partners = draw_partners(batch.indices, self._neighbours, share, batch.generator)
        images, normalise = self._task.images, self._task.normalise
        first = normalise(self._first(images[batch.indices], batch.generator))
        return first, normalise(self._second(images[partners], batch.generator))


class StageOutputs:
    """What the model says of one batch; each quantity is computed once, when a loss asks for it.

    Args:
        task: The stage.
        model: The model under training.
        views: The two views, each [B, C, H, W].
        batch: The batch they were drawn from.
    """

    def __init__(self, task: StageTask, model: StageModel, views: tuple[Tensor, Tensor], batch: Batch) -> None:
        self.task = task
        self.model = model
        self.batch = batch
        self._first_view = views[0]
        self.first, self.second = self._passed(model.trunk, torch.cat(views)).chunk(2)

    @cached_property
    def frozen(self) -> Tensor:
        """Features of the first view by the frozen network, [B, D], without gradient."""
        with torch.no_grad():
            return self._passed(self.task.network, self._first_view)

    @cached_property
    def projections(self) -> tuple[Tensor, Tensor]:
        """Projected features of the two views, each [B, P]."""
        return self.model.projector(self.first), self.model.projector(self.second)

    @cached_property
    def novel(self) -> tuple[Tensor, Tensor]:
        """Scores of the new classes for the two views, each [B, K], for the classifier losses."""
        old = self.task.old_classes
        first, second = self.for_classifier(self.first), self.for_classifier(self.second)
        return self.model.novel_logits(first, old), self.model.novel_logits(second, old)

    @cached_property
    def joint(self) -> Tensor:
        """Scores of all classes for the first view, [B, O + K]."""
        scores: Tensor = self.model.joint_head(self.for_classifier(self.first))
        return scores

    def _passed(self, network: nn.Module, images: Tensor) -> Tensor:
        return forward(network, images, self.task.settings.training.precision)

    def for_classifier(self, features: Tensor) -> Tensor:
        """Return the features with or without their way back into the backbone, as the settings say."""
        return features.detach() if self.task.settings.classifier.detach else features
