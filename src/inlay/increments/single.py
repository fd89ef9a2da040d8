"""Systems with one network: grow the head, train, balance the head, merge."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from inlay.increments.classifier import Classifier
from inlay.increments.increment import Increment, Learned, Train
from inlay.increments.outputs import Loss
from inlay.increments.work import IncrementWork
from inlay.methods.trunk import close_trunk

__all__ = ["SingleNetwork"]

Losses = Mapping[str, tuple[float, Loss]]


@dataclass(frozen=True)
class SingleNetwork:
    """Learns a stage with one network, whole or through branches that are merged at its end.

    Attributes:
        head: Makes the head over all classes at the start of a stage.
        losses: Weight and loss by name in a stage.
        tuning: The same when the head alone is trained on equally many images of each class.
        groups: Children of the network whose maps the losses need.
    """

    head: Callable[[Increment], nn.Module]
    losses: Callable[[Increment], Losses]
    tuning: Callable[[Increment], Losses] | None = None
    groups: tuple[str, ...] = ()

    def __call__(self, task: Increment, train: Train) -> Learned:
        """Learn a stage."""
        trunk = task.opened()
        classifier = Classifier(trunk, self.head(task).to(task.device))
        train("the losses", task, IncrementWork(task, classifier, self.losses(task), self.groups), task.training)
        if self.tuning is not None and task.index and task.recipe.tuning.epochs:
            # Batch norms stay in train mode, so that their statistics become those of equally many images as well.
            trunk.requires_grad_(False)
            classifier.head.requires_grad_(True)
            balanced = task.balanced(trunk)
            work = IncrementWork(balanced, classifier, self.tuning(balanced))
            train("the head", balanced, work, task.recipe.tuning)
        network, report = close_trunk(trunk, task.probe())
        return Learned(Classifier(network, classifier.head).frozen(), merge=report)
