"""Losses of DyTox (Douillard et al., CVPR 2022): yes or no for each class, held to the scores before the stage."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["dytox_weights", "entrywise_divergence", "newest_targets"]


def dytox_weights(old_classes: int, classes: int, newest: float = 0.1) -> dict[str, float]:
    """Return the weights of the losses: (1 - l) · binary + l · distillation + newest · binary loss of the newest task.

    Args:
        old_classes: Number of old classes, O; l is O / C.
        classes: Number of all classes, C.
        newest: Weight of the loss that tells the newest classes by their own embedding.

    Returns:
        Weights by the names "binary", "distillation" and "newest"; without old classes the first alone.
    """
    share = old_classes / classes
    return {"binary": 1 - share, "distillation": share, "newest": newest} if old_classes else {"binary": 1.0}


def entrywise_divergence(scores: Tensor, old_scores: Tensor) -> Tensor:
    """Return the divergence KL(before ‖ now) of the softmaxes over old classes, averaged over images and classes.

    Being a mean over all entries it is smaller by the number of classes than the usual mean over the images.

    Args:
        scores: Scores of all classes seen, old ones first, [B, C].
        old_scores: Scores before the stage, [B, O]; no gradient flows to them.

    Returns:
        The scalar, in at least float32.

    Raises:
        ValueError: If the shapes do not fit.
    """
    if old_scores.ndim != 2 or scores.ndim != 2 or len(scores) != len(old_scores):
        raise ValueError(f"scores must be [B, C] and [B, O]; got {tuple(scores.shape)}, {tuple(old_scores.shape)}")
    if not 0 < old_scores.shape[1] <= scores.shape[1]:
        raise ValueError(f"old classes must be among all {scores.shape[1]}; got {old_scores.shape[1]} of them")
    precision = torch.promote_types(scores.dtype, torch.float32)
    now = F.log_softmax(scores[:, : old_scores.shape[1]].to(precision), dim=1)
    before = F.log_softmax(old_scores.detach().to(precision), dim=1)
    return (before.exp() * (before - now)).mean()


def newest_targets(targets: Tensor, old_classes: int) -> Tensor:
    """Gather the targets of all old classes in one, as the head on the newest embedding tells them.

    Args:
        targets: Targets of all classes, old ones first, [B, O + K].
        old_classes: Number of old classes, O.

    Returns:
        The sum over old classes, then the targets of the new ones, [B, 1 + K].
    """
    return torch.cat([targets[:, :old_classes].sum(dim=1, keepdim=True), targets[:, old_classes:]], dim=1)
