"""What a training loop trains."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn

from inlay.engine.batch import Batch

__all__ = ["Work"]


class Work(nn.Module, ABC):
    """Modules under training and the losses of a batch.

    Its children are what the training changes; parameters with gradients are trained. The forward pass must depend
    on nothing but tensors and must not wait for the device, so that it can be compiled and recorded.
    """

    @abstractmethod
    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of a batch of all processes by name, each a scalar without its weight."""

    @abstractmethod
    def weights(self, progress: float) -> Mapping[str, float]:
        """Return the weight of each loss.

        Args:
            progress: Fraction of the training that is done.

        Returns:
            The weights by name, always of the same losses in the same order.
        """

    def begin_epoch(self, epoch: int) -> None:
        """Do what is due before the first step of an epoch, such as making targets for all images.

        What it changes must lie in buffers, in place, so that a checkpoint holds it and a recorded step sees it.

        Args:
            epoch: Number of the epoch, from 0.
        """
