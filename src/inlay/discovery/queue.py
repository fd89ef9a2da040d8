"""Queue of the features of past batches."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FeatureQueue"]


class FeatureQueue(nn.Module):
    """The latest unit vectors that were pushed, first in and first out, all on the device.

    It starts full of random directions. Everything lies in buffers, so that it moves and is saved with the module
    that holds it.

    Args:
        size: Number M of vectors kept, 1 or more.
        width: Length D of a vector, 1 or more.
        generator: Source of the first directions, on the CPU.
        dtype: Type of the vectors.

    Attributes:
        features: The vectors, [M, D].
        position: Row that the next vector replaces, int64 [].

    Raises:
        ValueError: If the size or the width is below 1.
    """

    features: Tensor
    position: Tensor

    def __init__(self, size: int, width: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if size < 1 or width < 1:
            raise ValueError(f"size and width must be 1 or more; got {size} and {width}")
        directions = F.normalize(torch.randn(size, width, generator=generator, dtype=dtype), dim=1)
        self.register_buffer("features", directions)
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))

    def entries(self) -> Tensor:
        """Return a copy of the vectors, [M, D].

        A loss may need them again for its gradients after the next `push`, which overwrites the originals.
        """
        return self.features.clone()

    @torch.no_grad()
    def push(self, features: Tensor) -> None:
        """Replace the oldest vectors; of more than M rows the last M stay.

        Args:
            features: Features of a batch, [B, D]; L2-normalised here, and no gradient flows to them.

        Raises:
            ValueError: If the shape is wrong.
        """
        size, width = self.features.shape
        if features.ndim != 2 or features.shape[1] != width:
            raise ValueError(f"features must be [B, {width}]; got {tuple(features.shape)}")
        kept = features[-size:].to(self.features.dtype)
        first = self.position + len(features) - len(kept)
        places = (first + torch.arange(len(kept), device=self.position.device)) % size
        self.features.index_copy_(0, places, F.normalize(kept, dim=1))
        self.position.copy_((self.position + len(features)) % size)
