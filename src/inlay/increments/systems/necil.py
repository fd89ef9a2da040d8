"""NECIL, also called SSRE (Zhu et al., CVPR 2022): prototypes stand for old classes, of which no image is kept.

What its sources leave open is decided here. The base stage is that of the code of PASS, as no other was released: each
quarter turn of a class is a class of its own, the rows of upright images are the head that goes on, and a step has 64
images in their four turns. Gradients flow through the similarity w, as in the released code. Prototypes are means over
images without augmentation. A step replays as many prototypes as it has images. Biases of new classes start at 0.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from inlay.discovery.statistics import class_statistics
from inlay.engine.randomness import generator
from inlay.heads import grow
from inlay.increments.classifier import Classifier
from inlay.increments.increment import Increment, Learned, System, Train
from inlay.increments.outputs import Loss, Outputs
from inlay.increments.recipe import MemorySettings, Recipe
from inlay.increments.reparameterised import (
    drawn_prototypes,
    prototype_similarity,
    selective_classification,
    selective_distillation,
)
from inlay.increments.single import SingleNetwork
from inlay.increments.turned_classes import TurnedWork
from inlay.settings import BranchSettings, TrainingSettings

__all__ = ["FAIR", "PUBLISHED"]

_PROTOTYPES = "prototypes"
_REPLAY = 10.0


def _head(task: Increment) -> nn.Linear:
    before = task.start.head
    assert isinstance(before, nn.Linear)
    head = grow(before, task.new_classes, generator(task.seed, "head")).requires_grad_(True)
    # Scores are divided by 0.1, so that a bias below the old ones would hold new classes back ten times as much.
    nn.init.zeros_(head.bias.detach()[task.old_classes :])
    return head


def _losses(task: Increment) -> dict[str, tuple[float, Loss]]:
    prototypes = task.extras[_PROTOTYPES].to(task.device)

    def classification(outputs: Outputs) -> Tensor:
        similarity = prototype_similarity(outputs.features, prototypes)
        return selective_classification(outputs.scores, outputs.labels, similarity)

    def distillation(outputs: Outputs) -> Tensor:
        similarity = prototype_similarity(outputs.features, prototypes)
        return selective_distillation(outputs.features, outputs.before[0], similarity)

    def replay(outputs: Outputs) -> Tensor:
        features, labels = drawn_prototypes(prototypes, outputs.draws.uniform(0.0, 1.0))
        return selective_classification(outputs.classifier.head(features), labels)

    return {
        "classification": (1.0, classification),
        "distillation": (1.0, distillation),
        "replay": (_REPLAY, replay),
    }


_LATER_STAGE = SingleNetwork(_head, _losses)


def _learn(task: Increment, train: Train) -> Learned:
    if task.index:
        return _LATER_STAGE(task, train)
    work = TurnedWork(task, task.opened())
    train("turned images", task, work, task.training)
    return Learned(Classifier(work.network, work.upright_head()).frozen())


def _prototypes(task: Increment, classifier: Classifier) -> dict[str, Tensor]:
    new = task.of_new_classes()
    labels = new.labels - task.old_classes
    means = class_statistics(new.features(classifier.network), labels, task.new_classes, "shared").mean
    old = [task.extras[_PROTOTYPES].to(means)] if task.index else []
    return {_PROTOTYPES: torch.cat([*old, means])}


_BASE = TrainingSettings(
    epochs=101,
    batch=64,
    optimizer="adam",
    learning_rate=1e-3,
    weight_decay=2e-4,
    schedule="step",
    decay_at=(45 / 101, 90 / 101),
)
# The distance that is distilled has a slope of 1 however small it is: rounding would give it a direction of its own.
_STAGE = TrainingSettings(
    epochs=60, optimizer="adam", learning_rate=2e-4, schedule="step", decay_at=(45 / 60,), precision="float32"
)
# Beside the convolutions of the residual blocks; the stem and the shortcuts are left as they are.
_ADAPTERS = BranchSettings(gate="imm", include=("layer*.conv[12]",), kernel="1x1", batch_norm=False)

PUBLISHED = System(
    name="necil",
    summary="NECIL (SSRE): prototypes instead of images, and 1×1 adapters that are merged",
    recipe=Recipe(
        backbone="resnet18-1x1",
        view="weak-bright",
        base=_BASE,
        stage=_STAGE,
        memory=MemorySettings(per_class=0),
        branch=_ADAPTERS,
    ),
    learn=_learn,
    base="turned classes",
    describe=_prototypes,
)
FAIR = replace(
    PUBLISHED,
    summary="prototypes instead of images, and the losses of NECIL",
    recipe=replace(PUBLISHED.recipe, view="weak", branch=BranchSettings(gate="full")),
)
