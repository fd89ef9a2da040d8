"""FOSTER (Wang et al., ECCV 2022): a second network learns what the first one lacks, then one learns from both.

The training of the second network is `recipe.stage`, that of the one that both are compressed into is `recipe.tuning`.
What both networks say together is scored, and chooses the images to keep, as in the published code; the compressed
classifier is what the next stage begins with. Unlike there, images are chosen by the herding of iCaRL, which may take
an image again and so skip a round, and heads are drawn from a normal distribution of the same variance as theirs.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from inlay.backbones.expanded import expand
from inlay.engine.batch import Batch
from inlay.engine.randomness import generator
from inlay.engine.work import Work
from inlay.errors import InlayError
from inlay.heads import kaiming_linear
from inlay.increments.classifier import Classifier
from inlay.increments.foster_loss import balanced_distillation, boosting_losses, class_weights
from inlay.increments.increment import Increment, Learned, System, Train
from inlay.increments.joint_head import widened
from inlay.increments.outputs import Outputs, cross_entropy
from inlay.increments.recipe import Recipe
from inlay.increments.single import SingleNetwork
from inlay.increments.work import IncrementWork
from inlay.settings import TrainingSettings

__all__ = ["PUBLISHED", "boosting_beta"]

_COMPRESSION_BETA = 0.97


def _learn(task: Increment, train: Train) -> Learned:
    if task.before is None:
        return SingleNetwork(_base_head, lambda _: {"cross-entropy": (1.0, cross_entropy)})(task, train)
    if task.recipe.tuning.epochs == 0:
        raise InlayError("FOSTER compresses two networks into one after each stage; write tuning.epochs=1 or more.")
    boosted = _boosted(task, train)
    return Learned(_compressed(task, boosted, train), scored=boosted)


class BoostingWork(Work):
    """Trains a network beside the frozen one before, under a joint head and a head of its own.

    Args:
        task: The stage.
    """

    def __init__(self, task: Increment) -> None:
        super().__init__()
        old = _old_head(task)
        head = widened(old, old.in_features, task.new_classes, generator(task.seed, "joint head"))
        self.classifier = Classifier(expand(task.start.network), head)
        enhancing = kaiming_linear(old.in_features, task.classes, generator(task.seed, "enhancing head"))
        self.enhancing = enhancing.to(task.device)
        self._task, self._old_size = task, old.in_features
        self._class_weights = _class_weights(task, boosting_beta(task.index, task.old_classes, task.new_classes))

    def weights(self, progress: float) -> dict[str, float]:
        """Return the weights, which do not change."""
        return {"classification": 1.0, "enhancement": 1.0, "distillation": 1.0}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of a batch."""
        outputs = Outputs(self._task, self.classifier, batch)
        old, new = outputs.features.tensor_split([self._old_size], dim=1)
        old_scores = self._task.start.head(old)
        return boosting_losses(outputs.scores, self.enhancing(new), old_scores, outputs.labels, self._class_weights)


def _boosted(task: Increment, train: Train) -> Classifier:
    work = BoostingWork(task)
    train("the second network", task, work, task.training)
    return work.classifier.frozen()


def _compressed(task: Increment, boosted: Classifier, train: Train) -> Classifier:
    weights = _class_weights(task, _COMPRESSION_BETA)
    student = Classifier(task.opened(), widened(_old_head(task), 0, task.new_classes, generator(task.seed, "head")))

    def distillation(outputs: Outputs) -> Tensor:
        return balanced_distillation(outputs.scores, outputs.old_scores, weights)

    # Both networks together are what the student is held against.
    taught = replace(task, before=boosted)
    work = IncrementWork(taught, student, {"distillation": (1.0, distillation)})
    train("the compression", taught, work, task.recipe.tuning)
    return student.frozen()


def boosting_beta(index: int, old_classes: int, new_classes: int) -> float:
    """Return the β by which classes weigh while the second network is trained, as the published settings have it.

    After a large base stage it is 0.94, and 0.95 where a stage brings fewer than five classes. Of equal stages of ten
    classes or more it falls by 0.0005 for each class, down to 0.94 at a hundred; of smaller ones it is 0.96.

    Args:
        index: Number of the stage, 1 or more.
        old_classes: Number of old classes.
        new_classes: Number of classes that the stage brings.
    """
    if old_classes != index * new_classes:
        return 0.94 if new_classes >= 5 else 0.95
    return max(0.94, 0.99 - (old_classes + new_classes) / 2000) if new_classes >= 10 else 0.96


def _class_weights(task: Increment, beta: float) -> Tensor:
    return class_weights(torch.bincount(task.labels, minlength=task.classes), beta)


def _old_head(task: Increment) -> nn.Linear:
    head = task.start.head
    assert isinstance(head, nn.Linear)
    return head


def _base_head(task: Increment) -> nn.Linear:
    return kaiming_linear(task.feature_size, task.classes, generator(task.seed, "head"))


_COSINE = TrainingSettings(nesterov=False, warm_up=0.0)

PUBLISHED = System(
    name="foster",
    summary="FOSTER: a second network for each stage, compressed with the first into one",
    recipe=Recipe(
        backbone="resnet32-pycil",
        view="weak-auto",
        base=replace(_COSINE, epochs=200),
        stage=replace(_COSINE, epochs=170),
        tuning=replace(_COSINE, epochs=130, weight_decay=0.0),
    ),
    learn=_learn,
    base="cross-entropy",
    takes_branches=False,
)
