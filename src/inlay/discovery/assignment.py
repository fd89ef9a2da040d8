"""Balanced assignment of images to prototypes, and its prediction across two views."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["assignment_of_first", "sinkhorn", "swapped_assignment"]


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    """Turn scores into soft assignments that use all prototypes about equally.

    Columns and rows of exp(scores / epsilon) are normalised in turn, in log space so that nothing overflows.
    Many iterations give every column the sum B / K.

    Args:
        scores: Similarity of images to prototypes, [B, K]; no gradient flows to them.
        epsilon: Smoothness, above 0; small values make hard assignments.
        iterations: Rounds of normalisation, 1 or more.

    Returns:
        Assignments, [B, K], in at least float32; rows sum to 1.

    Raises:
        ValueError: If epsilon or iterations is too small.
    """
    if epsilon <= 0 or iterations < 1:
        raise ValueError(f"epsilon must be above 0 and iterations 1 or more; got {epsilon} and {iterations}")
    log_plan = scores.to(torch.promote_types(scores.dtype, torch.float32)) / epsilon
    for _ in range(iterations - 1):
        log_plan = log_plan.log_softmax(dim=0).log_softmax(dim=1)
    return log_plan.log_softmax(dim=0).softmax(dim=1)


def swapped_assignment(
    scores_first: Tensor,
    scores_second: Tensor,
    temperature: float = 0.1,
    epsilon: float = 0.05,
    iterations: int = 3,
) -> Tensor:
    """Predict each view's balanced assignment from the other view.

    Args:
        scores_first: Similarity of the first views to the prototypes, [B, K].
        scores_second: The same for the second views, in the same order, [B, K].
        temperature: Divisor of the scores in the prediction, above 0.
        epsilon: See `sinkhorn`.
        iterations: See `sinkhorn`.

    Returns:
        The scalar mean of the two cross-entropies.

    Raises:
        ValueError: If the shapes differ or the temperature is not above 0.
    """
    from_second = assignment_of_first(scores_first, scores_second, temperature, epsilon, iterations)
    from_first = assignment_of_first(scores_second, scores_first, temperature, epsilon, iterations)
    return (from_second + from_first) / 2


def assignment_of_first(
    scores_first: Tensor,
    scores_second: Tensor,
    temperature: float = 0.1,
    epsilon: float = 0.05,
    iterations: int = 3,
) -> Tensor:
    """Predict the balanced assignment of the first views from the second views.

    Arguments, result and errors are those of `swapped_assignment`, of which this is one half.
    """
    if scores_first.shape != scores_second.shape:
        raise ValueError(
            f"both views need scores of one shape; got {tuple(scores_first.shape)} and {tuple(scores_second.shape)}"
        )
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0; got {temperature}")
    target = sinkhorn(scores_first, epsilon, iterations)
    return F.cross_entropy(scores_second.to(target.dtype) / temperature, target)
