"""The model under training in a discovery stage, and what it says of a batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from inlay.backbones.twin import ResidualStudentHead
from inlay.data.augment import augmentation
from inlay.data.draws import Draws
from inlay.discovery.neighbours import draw_partners, nearest_neighbours
from inlay.discovery.projection import StudentHead
from inlay.engine.batch import Batch
from inlay.engine.loop import Companions
from inlay.engine.once import once
from inlay.engine.passes import pass_views
from inlay.heads import NovelHead
from inlay.methods.task import StageTask

__all__ = ["StageModel", "StageOutputs", "neighbours_as_companions"]


@dataclass(frozen=True, eq=False)
class StageModel:
    """The parts that learn.

    Attributes:
        trunk: Hybrid network (or what takes its place) from images to features [B, D].
        novel_head: Head over the K new classes; None if the joint head's new outputs play its part.
        joint_head: Linear head over all O + K classes; None in a method that has none.
        projector: Projection head of the contrastive loss.
        others: Parts that the method adds, by name.
    """

    trunk: nn.Module
    novel_head: NovelHead | None
    joint_head: nn.Linear | None
    projector: nn.Module
    others: Mapping[str, nn.Module] = field(default_factory=dict)

    def parts(self) -> dict[str, nn.Module]:
        """Return the parts by name."""
        heads = {"joint_head": self.joint_head, "projector": self.projector, "novel_head": self.novel_head}
        return {"trunk": self.trunk, **{name: head for name, head in heads.items() if head is not None}, **self.others}

    def novel_logits(self, features: Tensor, old_classes: int) -> Tensor:
        """Return the scores of the new classes, [B, K]."""
        if self.novel_head is None:
            return self.joint_logits(features)[:, old_classes:]
        scores: Tensor = self.novel_head(features)
        return scores

    def joint_logits(self, features: Tensor) -> Tensor:
        """Return the scores of all classes, [B, O + K].

        Raises:
            ValueError: If the method has no joint head.
        """
        if self.joint_head is None:
            raise ValueError("this method has no joint head")
        scores: Tensor = self.joint_head(features)
        return scores


def neighbours_as_companions(task: StageTask) -> Companions | None:
    """Return what pairs images with near neighbours for the second view, or None where no pair is needed."""
    settings = task.settings.assignment
    if settings.partner_share == 0 or task.settings.training.epochs == 0:
        return None
    count = min(settings.neighbours, len(task.feed) - 1)
    neighbours = nearest_neighbours(task.frozen_features, count).cpu()

    def companions(indices: Tensor, key: int) -> Tensor:
        return draw_partners(indices, neighbours, settings.partner_share, Draws(key, indices))

    return companions


class StageOutputs:
    """What the model says of one batch; each quantity is computed once, when a loss asks for it.

    Quantities are those of the whole batch, whatever the number of processes.

    Args:
        task: The stage.
        model: The model under training.
        batch: The batch, of which two views are drawn.
    """

    def __init__(self, task: StageTask, model: StageModel, batch: Batch) -> None:
        self.task = task
        self.model = model
        self.batch = batch
        self.views = _views(task, batch)
        self.first, self.second = pass_views(model.trunk, self.views, task.settings.training.precision)

    @once
    def frozen(self) -> Tensor:
        """Features of the first view by the frozen network, [B, D], without gradient."""
        with torch.no_grad():
            return pass_views(self.task.network, self.views[:1], self.task.settings.training.precision)[0]

    @once
    def projections(self) -> tuple[Tensor, Tensor]:
        """Projected features of the two views, each [B, P]."""
        return self.model.projector(self.first), self.model.projector(self.second)

    @once
    def novel(self) -> tuple[Tensor, Tensor]:
        """Scores of the new classes for the two views, each [B, K], for the classifier losses."""
        old = self.task.old_classes
        first, second = self.for_classifier(self.first), self.for_classifier(self.second)
        return self.model.novel_logits(first, old), self.model.novel_logits(second, old)

    @once
    def joint(self) -> Tensor:
        """Scores of all classes for the first view, [B, O + K]."""
        return self.model.joint_logits(self.for_classifier(self.first))

    @once
    def probabilities(self) -> tuple[Tensor, Tensor]:
        """Probabilities of the new classes for the two views, each [B, K]."""
        if isinstance(self.model.novel_head, StudentHead | ResidualStudentHead):
            return self.novel
        first, second = (functional.softmax(scores, dim=1) for scores in self.novel)
        return first, second

    def for_classifier(self, features: Tensor) -> Tensor:
        """Return the features with or without their way back into the backbone, as the settings say."""
        return features.detach() if self.task.settings.classifier.detach else features


def _views(task: StageTask, batch: Batch) -> tuple[Tensor, Tensor]:
    """Draw the two views of the rows of this process as network inputs, each [r, C, H, W]."""
    settings, dtype = task.settings, task.head.weight.dtype
    draws = Draws(batch.key, batch.rows)
    first = augmentation(settings.first_view)(batch.images, draws)
    second = augmentation(settings.second_view)(batch.partners, draws)
    return task.normalise(first.to(dtype)), task.normalise(second.to(dtype))
