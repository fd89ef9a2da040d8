"""The order in which images are seen."""

import math

import torch
from torch import Tensor

from inlay.engine.randomness import generator

__all__ = ["Order"]

_MULTIPLE = 8


class Order:
    """Shuffles images anew for each epoch and cuts them into batches of one size.

    Every image is seen in each epoch; the last batch is filled up with images of the first. The size is a multiple
    of 8 if there are images enough: one that processors like, and that several processes can share.

    Args:
        images: Number of images.
        most: Largest batch.
        seed: Seed of the shuffling.

    Attributes:
        steps: Batches per epoch.
        batch: Images per batch.
    """

    def __init__(self, images: int, most: int, seed: int) -> None:
        self._images = images
        self._seed = seed
        self.steps = math.ceil(images / most)
        even = math.ceil(images / self.steps)
        self.batch = min(most, images, math.ceil(even / _MULTIPLE) * _MULTIPLE)

    def epoch(self, number: int) -> Tensor:
        """Return the images of each batch of an epoch, int64 [steps, batch], on the CPU."""
        shuffled = torch.randperm(self._images, generator=generator(self._seed, "order", number))
        missing = self.steps * self.batch - self._images
        return torch.cat([shuffled, shuffled[:missing]]).view(self.steps, self.batch)
