"""Guard against the solution in which every image falls into one class."""

import math

from torch import Tensor

__all__ = ["divergence_from_uniform"]


def divergence_from_uniform(logits: Tensor) -> Tensor:
    """Measure how far the mean prediction of a batch is from uniform (Eq. 5).

    The value is log K - H(p), p being the batch mean of the softmax: 0 if all classes are used equally, log K
    if one class takes everything. The paper prints H(p) itself, whose minimum is the collapse it sets out to
    prevent; this is the opposite sign plus a constant.

    Args:
        logits: Logits over the novel classes, [B, K].

    Returns:
        The scalar divergence from uniform.
    """
    images, classes = logits.shape
    # In log space a class of vanishing probability gives 0 · log 0 = 0 and a finite gradient.
    log_mean = logits.log_softmax(dim=1).logsumexp(dim=0) - math.log(images)
    return (log_mean.exp() * log_mean).sum() + math.log(classes)
