"""Auxiliary loss of DER: the newest features must tell new classes apart, and from old ones."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["auxiliary_labels", "auxiliary_loss"]


def auxiliary_labels(labels: Tensor, old_classes: int) -> Tensor:
    """Number the new classes from 1 and call every old class 0.

    Args:
        labels: Classes, int64, old ones first, any shape.
        old_classes: Number of old classes.

    Returns:
        Labels in 0..new classes, int64, of the same shape.
    """
    return (labels - (old_classes - 1)).clamp_min(0)


def auxiliary_loss(auxiliary_logits: Tensor, labels: Tensor, old_classes: int) -> Tensor:
    """Classify with a head on the newest features alone, in which all old classes are one.

    Cross-entropy of Yan, Xie and He (DER: Dynamically Expandable Representation for Class Incremental Learning,
    CVPR 2021), added to that of all classes with weight 1.

    Args:
        auxiliary_logits: Logits of the auxiliary head, first the one for all old classes, [B, new classes + 1].
        labels: Classes of the images, int64 [B], old ones first.
        old_classes: Number of old classes, 1 or more.

    Returns:
        The scalar mean over the images, in at least float32.

    Raises:
        ValueError: If the shapes do not fit or there are no old or no new classes.
    """
    if auxiliary_logits.ndim != 2 or len(auxiliary_logits) == 0 or labels.shape != auxiliary_logits.shape[:1]:
        raise ValueError(
            f"auxiliary logits must be [B, new classes + 1] and labels [B]; "
            f"got {tuple(auxiliary_logits.shape)}, {tuple(labels.shape)}"
        )
    if old_classes < 1 or auxiliary_logits.shape[1] < 2:
        raise ValueError(
            f"there must be old and new classes; got {old_classes} and {auxiliary_logits.shape[1] - 1} of them"
        )
    precision = torch.promote_types(auxiliary_logits.dtype, torch.float32)
    return F.cross_entropy(auxiliary_logits.to(precision), auxiliary_labels(labels, old_classes))
