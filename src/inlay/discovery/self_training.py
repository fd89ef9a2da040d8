"""Self-training of the joint head on the novel head's own predictions."""

import torch.nn.functional as F
from torch import Tensor

__all__ = ["self_training"]


def self_training(joint_logits: Tensor, novel_logits: Tensor, divide_by_classes: bool = False) -> Tensor:
    """Teach the joint head the novel head's hard predictions (Eq. 3).

    The pseudo-label is the number of old classes plus the novel head's argmax, and carries no gradient.

    Args:
        joint_logits: Logits over O old and K novel classes, old ones first, [B, O + K].
        novel_logits: Logits of the novel head for the same images, [B, K].
        divide_by_classes: Divide by O + K, as the equation is printed.

    Returns:
        The scalar cross-entropy over all O + K logits, averaged over the batch.

    Raises:
        ValueError: If the batches differ or the joint head has fewer outputs than the novel head.
    """
    classes = joint_logits.shape[1]
    old_classes = classes - novel_logits.shape[1]
    if len(joint_logits) != len(novel_logits) or old_classes < 0:
        raise ValueError(
            f"joint logits must be [B, O + K] and novel logits [B, K]; "
            f"got {tuple(joint_logits.shape)} and {tuple(novel_logits.shape)}"
        )
    pseudo_labels = old_classes + novel_logits.detach().argmax(dim=1)
    loss = F.cross_entropy(joint_logits, pseudo_labels)
    return loss / classes if divide_by_classes else loss
