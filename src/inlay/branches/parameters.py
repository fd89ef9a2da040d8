"""The number of parameters of a network."""

from torch import nn

from inlay.branches.example import Example
from inlay.branches.fold import fold
from inlay.branches.hybrid import is_hybrid

__all__ = ["count_parameters", "folded_parameters"]


def count_parameters(model: nn.Module) -> int:
    """Count the values of all parameters of a network; buffers are left out."""
    return sum(parameter.numel() for parameter in model.parameters())


def folded_parameters(model: nn.Module, example: Example) -> int:
    """Count the values of all parameters of a network with its batch norms folded, as it can be used.

    Networks compare so, whether they have been folded already or not. A hybrid, which is folded but for its branches,
    is counted as it is.

    Args:
        model: Network in eval mode; it is not changed.
        example: A batch that the network accepts; a tuple or a mapping for several arguments.

    Raises:
        InlayError: If the network cannot be folded.
    """
    return count_parameters(model if is_hybrid(model) else fold(model, example))
