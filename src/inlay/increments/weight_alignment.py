"""Equal weights for old and new classes in a linear head: weight alignment."""

import torch
from torch import Tensor

__all__ = ["aligned_weight"]


@torch.no_grad()
def aligned_weight(weight: Tensor, old_classes: int) -> Tensor:
    """Scale the rows of the new classes so that their mean length is that of the old ones.

    Weight alignment of Zhao et al. (Maintaining Discrimination and Fairness in Class Incremental Learning,
    CVPR 2020): all new rows are multiplied by mean |w_old| / mean |w_new|. Biases are left alone.

    Args:
        weight: Weight of the linear head, old classes first, [C, D].
        old_classes: Number of old classes, from 1 to C - 1.

    Returns:
        A new weight of the same type, [C, D]; new rows that are all 0 stay so.

    Raises:
        ValueError: If the weight is not a matrix, or there are no old or no new classes.
    """
    if weight.ndim != 2 or not 0 < old_classes < len(weight):
        raise ValueError(f"weight must be [C, D] with 0 < old_classes < C; got {tuple(weight.shape)} and {old_classes}")
    # Double precision, as squares of single ones may overflow.
    wide = weight.double()
    lengths = wide.norm(dim=1)
    old, new = lengths[:old_classes].mean(), lengths[old_classes:].mean()
    factor = torch.where(new > 0, old / new, 1.0)
    return torch.cat([wide[:old_classes], wide[old_classes:] * factor]).to(weight.dtype)
