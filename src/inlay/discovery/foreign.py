"""Images of another source among those that are not known: noise, screenshots, photographs in a pile of drawings."""

import torch
from torch import Tensor

__all__ = ["foreign_limit"]

# New classes of the source that the known ones are from reach two to three times the median of their scores.
_TIMES_MEDIAN = 3.0
_TIMES_THRESHOLD = 2 * _TIMES_MEDIAN


@torch.no_grad()
def foreign_limit(scores: Tensor, threshold: float) -> float:
    """Return the novelty score above which an image is further away than new classes are.

    It is three times the median score of the images that are not known, as long as that exceeds six times the
    threshold; where few images are new, errors among the known ones are the median, and then this is the limit. The
    score must be 0 for a usual known image, as that of the rule "combined" is.

    Args:
        scores: Novelty scores of a pile, [N].
        threshold: Score above which an image is not known.

    Returns:
        The limit; infinite where no image is above the threshold, or the threshold is not above 0.
    """
    beyond = scores[scores > threshold]
    if len(beyond) == 0 or threshold <= 0:
        return float("inf")
    return max(_TIMES_MEDIAN * float(beyond.median()), _TIMES_THRESHOLD * threshold)
