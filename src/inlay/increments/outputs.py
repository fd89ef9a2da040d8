"""What a classifier in training, and the one before it, say of a batch."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from inlay.data.augment import augmentation
from inlay.data.draws import Draws
from inlay.engine.batch import Batch
from inlay.engine.once import once
from inlay.engine.passes import chosen_precision
from inlay.increments.classifier import Classifier
from inlay.increments.increment import Increment

__all__ = ["Loss", "Outputs", "cross_entropy", "features_and_maps"]


class Outputs:
    """Quantities of one batch; each is computed once, when a loss asks for it.

    Args:
        task: The stage.
        classifier: The classifier in training.
        batch: The batch.
        groups: Names of the children of the network whose maps are wanted; the network must then be a sequence.
    """

    def __init__(self, task: Increment, classifier: Classifier, batch: Batch, groups: tuple[str, ...] = ()) -> None:
        self.task = task
        self.classifier = classifier
        self.batch = batch
        self.labels = task.labels[batch.indices]
        self._groups = groups
        self._draws = Draws(batch.key, batch.rows)
        self.inputs = task.form.normalise(augmentation(task.recipe.view)(batch.images, self._draws))
        self.features, self.maps = self._passed(classifier.network)

    @property
    def draws(self) -> Draws:
        """Further random numbers of the images of the batch."""
        return self._draws

    @once
    def scores(self) -> Tensor:
        """Scores of all classes, [B, O + K]."""
        scores: Tensor = self.classifier.head(self.features)
        return scores

    @once
    def before(self) -> tuple[Tensor, list[Tensor]]:
        """Features [B, D] and maps by the network before the stage, without gradient."""
        with torch.no_grad():
            return self._passed(self.task.start.network)

    @once
    def old_scores(self) -> Tensor:
        """Scores of the old classes by the classifier before the stage, [B, O], without gradient."""
        with torch.no_grad():
            scores: Tensor = self.task.start.head(self.before[0])
            return scores

    def _passed(self, network: nn.Module) -> tuple[Tensor, list[Tensor]]:
        with chosen_precision(self.inputs, self.task.training.precision):
            features, maps = features_and_maps(network, self.inputs, self._groups)
        return features.to(self.inputs.dtype), maps


Loss = Callable[[Outputs], Tensor]
"""From the outputs for a batch to a scalar."""


def cross_entropy(outputs: Outputs) -> Tensor:
    """Return the cross-entropy over all classes, a scalar."""
    return functional.cross_entropy(outputs.scores, outputs.labels)


def features_and_maps(network: nn.Module, inputs: Tensor, groups: tuple[str, ...]) -> tuple[Tensor, list[Tensor]]:
    """Return what a network makes of inputs, and the outputs of some of its children on the way.

    Args:
        network: From inputs to features [B, D]; with groups an `nn.Sequential`.
        inputs: [B, C, H, W].
        groups: Names of children, in their order.

    Raises:
        ValueError: If a child is missing, or the network is not a sequence.
    """
    if not groups:
        features: Tensor = network(inputs)
        return features, []
    if not isinstance(network, nn.Sequential) or not {*groups} <= {name for name, _ in network.named_children()}:
        raise ValueError(f"the network must be a sequence with children named {', '.join(groups)}")
    passed, maps = inputs, []
    for name, child in network.named_children():
        passed = child(passed)
        if name in groups:
            maps.append(passed)
    return passed, maps
