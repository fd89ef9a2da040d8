"""Replay of old classes by features drawn from their stored statistics."""

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["replay_loss"]


def replay_loss(head: nn.Module, samples: Tensor, labels: Tensor) -> Tensor:
    """Keep the joint head right on replayed old-class features (Eq. 6).

    The softmax runs over all classes, else nothing would stop a new class from winning on old features.

    Args:
        head: The joint classifier, [N, D] to [N, O + K].
        samples: Replayed features, [N, D].
        labels: Their classes, [N].

    Returns:
        The scalar cross-entropy, averaged over the samples.
    """
    return F.cross_entropy(head(samples), labels)
