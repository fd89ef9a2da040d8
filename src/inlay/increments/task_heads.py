"""A head for the classes of each task, on the embedding of that task alone."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from inlay.heads import linear

__all__ = ["TaskHeads", "normed_linear"]


def normed_linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    """Return a layer norm and a linear layer behind it, drawn from a generator."""
    return nn.Sequential(nn.LayerNorm(inputs), linear(inputs, outputs, generator))


class TaskHeads(nn.Module):
    """Scores the classes of each task by the embedding of that task (DyTox, Douillard et al., CVPR 2022).

    Args:
        heads: Head of each task, from its embedding [B, D] to the scores of its classes; kept as they are.

    Attributes:
        heads: The heads, the first task first.

    Raises:
        ValueError: If there is no head.
    """

    def __init__(self, heads: Iterable[nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        if not len(self.heads):
            raise ValueError("there must be the head of one task at least")

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the scores of all classes, [B, C], for the embeddings of the T tasks side by side, [B, T·D]."""
        parts = embeddings.chunk(len(self.heads), dim=1)
        return torch.cat([head(part) for head, part in zip(self.heads, parts, strict=True)], dim=1)
