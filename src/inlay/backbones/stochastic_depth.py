"""Leaving out layers of a network at random while it is trained (Huang et al., ECCV 2016)."""

from torch import Tensor

from inlay.data.draws import Draws

__all__ = ["Kept", "added", "kept_paths"]

Kept = tuple[Tensor, Tensor] | None
"""What is kept of the attention and of the MLP of a block: factors that broadcast to its tokens; None keeps all."""


def kept_paths(draws: Draws, rate: float, tokens: int = 1) -> Kept:
    """Draw what is kept of a block, independently for each image.

    Args:
        draws: Source of the draws, of B rows.
        rate: Probability that the attention, or the MLP, is left out for an image; 0 draws nothing.
        tokens: How many independent draws each image has.

    Returns:
        Two tensors of 0 and 1 / (1 - rate), [B, tokens, 1]; None if the rate is 0.
    """
    if not rate:
        return None
    kept = (draws.uniform(0, 1, 2, tokens, 1) >= rate).float() / (1 - rate)
    return kept[:, 0], kept[:, 1]


def added(tokens: Tensor, change: Tensor, kept: Tensor | None) -> Tensor:
    """Return tokens [B, N, D] and what a layer makes of them, as far as that is kept, [B, 1 or N, 1]."""
    return tokens + (change if kept is None else kept * change)
