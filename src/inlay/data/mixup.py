"""Blends of two images and of their labels: mixup (Zhang et al., ICLR 2018)."""

import torch
from torch import Tensor

from inlay.data.draws import Draws

__all__ = ["beta", "blended", "blended_targets", "share_of_batch"]

# For a power up to 1 at least half of the attempts succeed: all of them fail once in 2**32 draws at most.
_ATTEMPTS = 32
# Stands for the whole batch; no image has this number.
_NO_IMAGE = 2**62


def beta(draws: Draws, power: float) -> Tensor:
    """Draw numbers in 0..1 from the distribution Beta(power, power), float32 [B].

    By Jöhnk's method: of pairs of uniform numbers to the power 1 / power, the first whose sum is at most 1 gives the
    share that its first number has in the sum.

    Args:
        draws: Source of the draws, of B rows.
        power: Above 0 and up to 1.

    Raises:
        ValueError: If the power is something else.
    """
    if not 0 < power <= 1:
        raise ValueError(f"the power must be above 0 and up to 1; got {power}")
    # In the logarithm, as a small power would make both numbers 0. A uniform number here is never 0, but may be 1.
    logarithms = torch.log(1 - draws.uniform(0, 1, 2, _ATTEMPTS)) / power
    accepted = torch.logsumexp(logarithms, dim=1) <= 0
    first = accepted.int().argmax(dim=1, keepdim=True)
    return torch.sigmoid(logarithms[:, 0] - logarithms[:, 1]).gather(1, first).squeeze(1)


def share_of_batch(key: Tensor, power: float) -> Tensor:
    """Draw the share that each image of a batch keeps of itself.

    Args:
        key: Seed of the draws of the step, int64 [].
        power: Both parameters of the Beta distribution, above 0 and up to 1.

    Returns:
        A number in 0..1, float32 [].
    """
    rows = torch.full((1,), _NO_IMAGE, dtype=torch.int64, device=key.device)
    return beta(Draws(key, rows), power)[0]


def blended(values: Tensor, share: Tensor) -> Tensor:
    """Blend each row of a batch with the row that has its place counted from the end.

    Args:
        values: [B, ...].
        share: What each row keeps of itself, [].
    """
    return values.flip(0) + share * (values - values.flip(0))


def blended_targets(labels: Tensor, classes: int, share: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the targets of images that `blended` has mixed.

    Args:
        labels: Classes of the images before, int64 [B].
        classes: Number of classes, C.
        share: What each image keeps of itself, [].
        smoothing: Part of each target that is spread evenly over all classes.

    Returns:
        Targets that sum up to 1, float32 [B, C].
    """
    # By comparison: torch's one_hot may look at the labels, for which the host would have to wait.
    certain = (labels[:, None] == torch.arange(classes, device=labels.device)).float()
    return blended((1 - smoothing) * certain + smoothing / classes, share)
