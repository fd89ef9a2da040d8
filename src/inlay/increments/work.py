"""A classifier under the losses of a system."""

from collections.abc import Mapping

from torch import Tensor

from inlay.engine.batch import Batch
from inlay.engine.work import Work
from inlay.increments.classifier import Classifier
from inlay.increments.increment import Increment
from inlay.increments.outputs import Loss, Outputs

__all__ = ["IncrementWork"]


class IncrementWork(Work):
    """Trains what has gradients in a classifier.

    Args:
        task: The stage.
        classifier: The classifier.
        losses: Weight and loss by name.
        groups: Children of the network whose maps the losses need.
    """

    def __init__(
        self,
        task: Increment,
        classifier: Classifier,
        losses: Mapping[str, tuple[float, Loss]],
        groups: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.classifier = classifier
        self._task, self._losses, self._groups = task, dict(losses), groups
        if task.before is not None:
            # Made now, as a compiled step could not make it.
            _ = task.start

    def weights(self, progress: float) -> dict[str, float]:
        """Return the weights, which do not change."""
        return {name: weight for name, (weight, _) in self._losses.items()}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of a batch."""
        outputs = Outputs(self._task, self.classifier, batch, self._groups)
        return {name: loss(outputs) for name, (_, loss) in self._losses.items()}
