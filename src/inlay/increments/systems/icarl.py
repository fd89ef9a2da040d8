"""iCaRL (Rebuffi et al., CVPR 2017): images kept of old classes, and distillation of what was said of them.

`PUBLISHED` is iCaRL as in the code of PODNet's authors, whose figures are printed: the head reads features behind a
last ReLU, herding and nearest means read those before it. As released, that code runs three class orders in one process
and loses a part of the augmentation with each: the second has no flips, the third no crops either. Here all have both.
"""

from torch import Tensor, nn

from inlay.engine.randomness import generator
from inlay.heads import kaiming_linear
from inlay.increments.icarl_loss import binary_loss, distilled_losses
from inlay.increments.increment import Increment, System
from inlay.increments.joint_head import widened
from inlay.increments.outputs import Loss, Outputs, cross_entropy
from inlay.increments.recipe import Recipe
from inlay.increments.single import SingleNetwork
from inlay.settings import TrainingSettings

__all__ = ["FAIR", "PUBLISHED", "distilled", "linear_head"]


def linear_head(task: Increment) -> nn.Linear:
    """Return a linear head over all classes: old rows are those before, new ones of Kaiming's rule with biases 0."""
    randomness = generator(task.seed, "head")
    if task.before is None:
        return kaiming_linear(task.feature_size, task.classes, randomness)
    head = task.start.head
    assert isinstance(head, nn.Linear)
    return widened(head, 0, task.new_classes, randomness)


def _binary(outputs: Outputs) -> Tensor:
    return binary_loss(outputs.scores, outputs.labels, outputs.old_scores if outputs.task.index else None)


def _distillation(outputs: Outputs) -> Tensor:
    return distilled_losses(outputs.scores, outputs.labels, outputs.old_scores)["distillation"]


def distilled(task: Increment) -> dict[str, tuple[float, Loss]]:
    """Return weight and loss by name: cross-entropy over all classes and, in later stages, distillation of old ones."""
    losses: dict[str, tuple[float, Loss]] = {"cross-entropy": (1.0, cross_entropy)}
    return {**losses, "distillation": (1.0, _distillation)} if task.index else losses


# The rate suits a mean over all entries of batch times classes, which makes gradients small.
_BINARY_TRAINING = TrainingSettings(
    epochs=70,
    learning_rate=2.0,
    nesterov=False,
    weight_decay=5e-5,
    schedule="step",
    decay_at=(49 / 70, 63 / 70),
    decay_factor=0.2,
)
_DISTILLED_TRAINING = TrainingSettings(epochs=160, nesterov=False, schedule="step", decay_at=(80 / 160, 120 / 160))

PUBLISHED = System(
    name="icarl",
    summary="iCaRL as the printed figures have it: one binary loss for labels and distillation",
    recipe=Recipe(backbone="resnet32-rebuffi-relu", base=_BINARY_TRAINING, stage=_BINARY_TRAINING),
    learn=SingleNetwork(linear_head, lambda task: {"binary": (1.0, _binary)}),
    base="binary",
)
FAIR = System(
    name="icarl",
    summary="cross-entropy over all classes and distillation of the old ones",
    recipe=Recipe(base=_DISTILLED_TRAINING, stage=_DISTILLED_TRAINING),
    learn=SingleNetwork(linear_head, distilled),
    base="cross-entropy",
)
