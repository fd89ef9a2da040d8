"""Images of learned classes that are kept for later stages."""

from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.increments.herding import herd

__all__ = ["Memory"]


@dataclass(frozen=True, eq=False)
class Memory:
    """Which images of each class are kept, the best first.

    Attributes:
        ranked: For each class, in the order in which they came, the numbers of its images, int64.
    """

    ranked: tuple[Tensor, ...] = ()

    @property
    def rows(self) -> Tensor:
        """Numbers of all images, class by class, int64."""
        return torch.cat([torch.empty(0, dtype=torch.int64), *self.ranked])

    @property
    def labels(self) -> Tensor:
        """Their classes, int64."""
        sizes = torch.tensor([len(rows) for rows in self.ranked], dtype=torch.int64)
        return torch.arange(len(self.ranked)).repeat_interleave(sizes)

    def extended(self, features: Tensor, labels: Tensor, rows: Tensor, count: int) -> "Memory":
        """Return the memory with images of further classes, chosen by herding; those of others are cut to the count.

        Args:
            features: Features of the images to choose from, without augmentation, [N, D].
            labels: Their classes, which count on from those in memory, int64 [N].
            rows: Their numbers, int64 [N].
            count: Images of each class, at most.

        Raises:
            ValueError: If the labels do not count on.
        """
        known = len(self.ranked)
        own = labels.cpu() - known
        if len(own) and int(own.min()) < 0:
            raise ValueError(f"labels must be {known} or more; got {int(labels.min())}")
        classes = int(own.max()) + 1 if len(own) else 0
        chosen = herd(features, own.to(features.device), classes, count)
        new = [rows.cpu()[places.cpu()] for places in chosen]
        return Memory((*(kept[:count] for kept in self.ranked), *new))
