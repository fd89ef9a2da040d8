"""Learning rate as a function of the progress of training."""

import math
from collections.abc import Sequence

__all__ = ["cosine", "step_decay"]


def cosine(progress: float, warm_up: float = 0.1) -> float:
    """Return the factor on the peak learning rate: linear rise, then half a cosine down to 0.

    Args:
        progress: Fraction of the training that is done, in 0..1.
        warm_up: Fraction over which the rate rises; 0 begins at the peak.
    """
    if progress < warm_up:
        return max(progress, 1e-3) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up)))


def step_decay(progress: float, decay_at: Sequence[float], factor: float = 0.1) -> float:
    """Return the factor to the power of the number of decays that have been passed."""
    return float(factor ** sum(progress >= moment for moment in decay_at))
