"""DER (Yan, Xie and He, CVPR 2021): a new network for each stage beside the frozen ones before.

Without pruning, whose masks were never released. What the paper leaves open is as in the published code: heads have no
biases, the decays of the learning rate count from the end of the warm-up, after which both heads are drawn anew, and
all networks are in eval mode while the head is trained on equally many images of each class, drawn at random. `warm_up`
of a training is the share of its epochs that warm up: none of a large base stage, and as many of the first of equal
stages as of the others. Unlike there, the rate rises with each step and not with each epoch, and falls again in the
last tenth of the warm-up.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from inlay.backbones.expanded import expand
from inlay.backbones.resnet import BasicBlock
from inlay.engine.randomness import generator
from inlay.heads import kaiming_linear, linear
from inlay.increments.balance import balanced_subset
from inlay.increments.classifier import Classifier
from inlay.increments.der_loss import auxiliary_loss
from inlay.increments.increment import Increment, Learned, System, Train
from inlay.increments.outputs import Loss, Outputs, cross_entropy
from inlay.increments.recipe import Recipe
from inlay.increments.work import IncrementWork
from inlay.settings import TrainingSettings

__all__ = ["PUBLISHED"]

_TUNING_TEMPERATURE = 5.0


def _learn(task: Increment, train: Train) -> Learned:
    if task.before is None:
        return _learn_base(task, train)
    network = expand(task.start.network)
    size = task.feature_size
    classifier = Classifier(network, _head(task, size * len(network.networks), task.classes, "head"))
    auxiliary = _head(task, size, task.new_classes + 1, "auxiliary head")

    def auxiliary_term(outputs: Outputs) -> Tensor:
        return auxiliary_loss(auxiliary(outputs.features[:, -size:]), outputs.labels, task.old_classes)

    losses: dict[str, tuple[float, Loss]] = {
        "classification": (1.0, cross_entropy),
        "auxiliary": (1.0, auxiliary_term),
    }
    work = IncrementWork(task, classifier, losses)
    work.add_module("auxiliary", auxiliary)
    _train(task, "the new network", work, {"head": classifier.head, "auxiliary head": auxiliary}, train)
    classifier.frozen()
    if task.recipe.tuning.epochs:
        _tune_head(task, classifier, train)
    return Learned(classifier.frozen())


def _learn_base(task: Increment, train: Train) -> Learned:
    network = task.opened()
    for module in network.modules():
        if isinstance(module, BasicBlock):
            # Each block starts as its shortcut.
            nn.init.zeros_(module.norm2.weight)
    classifier = Classifier(network, _head(task, task.feature_size, task.classes, "head"))
    work = IncrementWork(task, classifier, {"classification": (1.0, cross_entropy)})
    _train(task, "the losses", work, {"head": classifier.head}, train)
    return Learned(classifier.frozen())


def _train(task: Increment, name: str, work: IncrementWork, heads: Mapping[str, nn.Module], train: Train) -> None:
    """Train some work, after a warm-up with heads that are drawn anew then."""
    warm_up, rest = _phases(task.training)
    if warm_up.epochs:
        train("the warm-up", task, work, warm_up)
        for title, head in heads.items():
            _reset(head, task, f"{title} after the warm-up")
    train(name, task, work, rest)


class _HeadWork(IncrementWork):
    """Trains the head of a classifier whose networks stay in eval mode."""

    def train(self, mode: bool = True) -> "_HeadWork":
        super().train(mode)
        self.classifier.network.eval()
        return self


def _tune_head(task: Increment, classifier: Classifier, train: Train) -> None:
    _reset(classifier.head, task, "tuned head")
    classifier.head.requires_grad_(True)
    balanced = task.of_rows(balanced_subset(task.labels, generator(task.seed, "balanced")))
    work = _HeadWork(balanced, classifier, {"classification": (1.0, _softened_cross_entropy)})
    train("the head", balanced, work, task.recipe.tuning)


def _phases(settings: TrainingSettings) -> tuple[TrainingSettings, TrainingSettings]:
    """Cut a training into its warm-up, in which the learning rate rises, and the rest."""
    early = round(settings.epochs * settings.warm_up)
    late = settings.epochs - early
    warm_up = replace(settings, epochs=early, schedule="cosine", warm_up=0.9)
    decay_at = tuple((moment * settings.epochs - early) / late for moment in settings.decay_at if late)
    return warm_up, replace(settings, epochs=late, decay_at=decay_at, warm_up=0.0)


def _head(task: Increment, inputs: int, outputs: int, name: str) -> nn.Linear:
    head = kaiming_linear(inputs, outputs, generator(task.seed, name))
    head.register_parameter("bias", None)
    return head.to(task.device)


def _reset(head: nn.Module, task: Increment, name: str) -> None:
    """Draw the weights of a head anew, in place."""
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.copy_(linear(head.in_features, head.out_features, generator(task.seed, name)).weight)


def _softened_cross_entropy(outputs: Outputs) -> Tensor:
    return functional.cross_entropy(outputs.scores / _TUNING_TEMPERATURE, outputs.labels)


_STEPS = TrainingSettings(nesterov=False, schedule="step", warm_up=0.0)

PUBLISHED = System(
    name="der",
    summary="DER without pruning: one more network for each stage, whose features are concatenated",
    recipe=Recipe(
        backbone="resnet18-1x1",
        view="weak-bright",
        base=replace(_STEPS, epochs=200, decay_at=(60 / 200, 120 / 200, 160 / 200)),
        stage=replace(_STEPS, epochs=170, warm_up=10 / 170, decay_at=(110 / 170, 130 / 170)),
        tuning=replace(_STEPS, epochs=30, decay_at=(15 / 30,)),
    ),
    learn=_learn,
    base="cross-entropy without biases, from blocks that begin as shortcuts",
    takes_branches=False,
)
