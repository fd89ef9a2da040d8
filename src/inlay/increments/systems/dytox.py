"""DyTox+ (Douillard et al., CVPR 2022): a transformer with a token and a head for each task, trained on blends.

Unlike in the published code, views come from the policy of AutoAugment, from whose operations the RandAugment of the
paper draws; the rate falls to 0 and not to 1e-5; images are chosen by the tuned network, without augmentation; all
images are seen once in an epoch, where several devices saw a third of them three times; and one memory serves all.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from inlay.backbones.task_tokens import TaskTokenNetwork, shape_named
from inlay.data.augment import augmentation
from inlay.data.draws import Draws
from inlay.data.mixup import blended, blended_targets, share_of_batch
from inlay.engine.batch import Batch
from inlay.engine.passes import chosen_precision
from inlay.engine.randomness import generator
from inlay.engine.work import Work
from inlay.increments.classifier import Classifier
from inlay.increments.dytox_loss import dytox_weights, entrywise_divergence, newest_targets
from inlay.increments.increment import Increment, Learned, System, Train
from inlay.increments.recipe import MemorySettings, Recipe
from inlay.increments.task_heads import TaskHeads, normed_linear
from inlay.methods.trunk import close_trunk
from inlay.settings import TrainingSettings

__all__ = ["FAIR", "PUBLISHED", "Dytox"]


@dataclass(frozen=True)
class Dytox:
    """Learns a stage with a new token and head; then tunes all tokens, heads and the task attention.

    Attributes:
        mixing: Power of the Beta distribution of the blends.
        smoothing: Smoothing of the targets.
        newest: Weight of the loss by which the newest embedding alone tells the new classes apart, and from old ones.
    """

    mixing: float = 0.8
    smoothing: float = 0.1
    newest: float = 0.1

    def __call__(self, task: Increment, train: Train) -> Learned:
        """Learn a stage."""
        network = _opened(task)
        classifier = Classifier(network, _heads(task, _width(network)))
        work = DytoxWork(self, task, classifier, dytox_weights(task.old_classes, task.classes, self.newest))
        train("the losses", task, work, task.training)
        if task.index and task.recipe.tuning.epochs:
            network.encoder.requires_grad_(False)
            network.tokens.requires_grad_(True)
            classifier.head.requires_grad_(True)
            balanced = task.balanced(network)
            train("the decoder", balanced, DytoxWork(self, balanced, classifier, {"binary": 1.0}), task.recipe.tuning)
        merged, report = close_trunk(network, task.probe())
        return Learned(Classifier(merged, classifier.head).frozen(), merge=report)


class DytoxWork(Work):
    """Trains what has gradients in a classifier on blends of images.

    Args:
        how: How images and targets are blended.
        task: The stage.
        classifier: A `TaskTokenNetwork`, or one with branches, and its `TaskHeads`.
        weights: Weights of the losses by name, as `dytox_weights` gives them; losses without a weight are left out.

    Attributes:
        newest: Head on the newest embedding alone, over one class for all old ones and the new classes; it is trained
            too, and serves for nothing else. None without its loss.
    """

    newest: nn.Module | None

    def __init__(self, how: Dytox, task: Increment, classifier: Classifier, weights: Mapping[str, float]) -> None:
        super().__init__()
        self.classifier = classifier
        self.newest = None
        if "newest" in weights:
            width = _width(classifier.network)
            head = normed_linear(width, task.new_classes + 1, generator(task.seed, "newest"))
            self.newest = head.to(task.device)
        self._how, self._task, self._weights = how, task, dict(weights)

    def weights(self, progress: float) -> dict[str, float]:
        """Return the weights, which do not change."""
        return self._weights

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of a batch."""
        task, network = self._task, self.classifier.network
        assert isinstance(network, TaskTokenNetwork)
        draws = Draws(batch.key, batch.rows)
        share = share_of_batch(batch.key, self._how.mixing)
        inputs = blended(task.form.normalise(augmentation(task.recipe.view)(batch.images, draws)), share)
        targets = blended_targets(task.labels[batch.indices], task.classes, share, self._how.smoothing)
        with chosen_precision(inputs, task.training.precision):
            embeddings = network(inputs, network.drawn_paths(draws)).to(inputs.dtype)
        scores = self.classifier.head(embeddings)
        losses = {"binary": functional.binary_cross_entropy_with_logits(scores, targets)}
        if "distillation" in self._weights:
            losses["distillation"] = entrywise_divergence(scores, self._old_scores(inputs))
        if self.newest is not None:
            told = self.newest(embeddings[:, -_width(network) :])
            goal = newest_targets(targets, task.old_classes)
            losses["newest"] = functional.binary_cross_entropy_with_logits(told, goal)
        return losses

    @torch.no_grad()
    def _old_scores(self, inputs: Tensor) -> Tensor:
        start = self._task.start
        with chosen_precision(inputs, self._task.training.precision):
            embeddings: Tensor = start.network(inputs)
        scores: Tensor = start.head(embeddings.to(inputs.dtype))
        return scores


def _width(network: nn.Module) -> int:
    assert isinstance(network, TaskTokenNetwork)
    return len(network.tokens[0])


def _opened(task: Increment) -> TaskTokenNetwork:
    """Return the network to train: a new one in the base stage, later that before with one more token."""
    shape = shape_named(task.recipe.backbone)
    if task.before is None:
        network = TaskTokenNetwork(shape, task.form.channels, task.form.size, generator(task.seed, "backbone"))
        return network.to(task.device)
    opened = task.opened()
    assert isinstance(opened, TaskTokenNetwork)
    opened.tokens.requires_grad_(False)
    opened.add_token(generator(task.seed, "token"))
    return opened


def _heads(task: Increment, width: int) -> TaskHeads:
    """Return the heads of the tasks before, frozen, and a new one."""
    new = normed_linear(width, task.new_classes, generator(task.seed, "head"))
    if task.before is None:
        return TaskHeads([new]).to(task.device)
    before = task.before.head
    assert isinstance(before, TaskHeads)
    # Copied, as tuning moves them.
    return TaskHeads([*copy.deepcopy(before).heads, new]).to(task.device)


# 5e-4 for each 512 images of a batch, which is that of the two devices of the paper.
_TRAINING = TrainingSettings(
    epochs=500, batch=256, optimizer="adamw", learning_rate=2.5e-4, weight_decay=1e-6, warm_up=0.01
)
# Without steps a constant rate.
_TUNING = replace(_TRAINING, epochs=20, learning_rate=2.5e-5, schedule="step", warm_up=0.0)

PUBLISHED = System(
    name="dytox+",
    summary="a transformer with a token and a head for each task, trained on blends of images",
    recipe=Recipe(
        backbone="dytox",
        view="weak-policy",
        base=_TRAINING,
        stage=_TRAINING,
        tuning=_TUNING,
        memory=MemorySettings(per_class=0, total=2000),
        around="trained",
    ),
    learn=Dytox(),
    base="blended binary",
)
FAIR = replace(PUBLISHED, recipe=replace(PUBLISHED.recipe, view="weak", memory=MemorySettings(per_class=20)))
