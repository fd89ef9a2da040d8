"""iCaRL (Rebuffi et al., CVPR 2017): images kept of old classes, and distillation of what was said of them."""

from torch import Tensor, nn

from inlay.engine.randomness import generator
from inlay.heads import grow, linear
from inlay.increments.icarl_loss import binary_loss, distilled_losses
from inlay.increments.increment import Increment, System
from inlay.increments.outputs import Loss, Outputs, cross_entropy
from inlay.increments.recipe import Recipe
from inlay.increments.single import SingleNetwork
from inlay.settings import TrainingSettings

__all__ = ["FAIR", "PUBLISHED", "distilled", "linear_head"]


def linear_head(task: Increment) -> nn.Linear:
    """Return a linear head over all classes, whose old rows are those of the stage before."""
    randomness = generator(task.seed, "head")
    if task.before is None:
        return linear(task.feature_size, task.classes, randomness)
    head = task.start.head
    assert isinstance(head, nn.Linear)
    return grow(head, task.new_classes, randomness).requires_grad_(True)


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
    recipe=Recipe(base=_BINARY_TRAINING, stage=_BINARY_TRAINING),
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
