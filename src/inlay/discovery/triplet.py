"""Triplet comparison: agree with the most similar image, differ from the least similar one."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["mine", "triplet_comparison"]


def mine(features: Tensor) -> tuple[Tensor, Tensor]:
    """Find the most and the least cosine-similar other image of each image in the batch.

    Args:
        features: Features of the batch, [B, D]; no gradient flows to them.

    Returns:
        The row of each image's positive, [B], and of its negative, [B].

    Raises:
        ValueError: If there are fewer than two images.
    """
    if features.ndim != 2 or len(features) < 2:
        raise ValueError(f"mining needs features [B, D] of at least two images; got {tuple(features.shape)}")
    directions = F.normalize(features.detach(), dim=1)
    similarity = directions @ directions.T
    itself = torch.eye(len(features), dtype=torch.bool, device=features.device)
    positive = similarity.masked_fill(itself, -torch.inf).argmax(dim=1)
    negative = similarity.masked_fill(itself, torch.inf).argmin(dim=1)
    return positive, negative


def triplet_comparison(
    anchor_p: Tensor,
    positive_p: Tensor,
    negative_p: Tensor,
    margin: float = 1.0,
    classes: int | None = None,
) -> Tensor:
    """Compare class probabilities within triplets as a hinge (Eq. 4).

    The distance of two rows is their summed squared difference divided by `classes`. It is at most
    2 / classes, so with two classes or more and a margin of 1 the hinge is always active and has the printed
    gradient.

    Args:
        anchor_p: Probabilities of the anchors, [B, K].
        positive_p: Probabilities of the images that should agree, [B, K].
        negative_p: Probabilities of the images that should differ, [B, K].
        margin: How much farther the negative should be than the positive.
        classes: Divisor of the squared differences; K unless given.

    Returns:
        The scalar mean over anchors.

    Raises:
        ValueError: If the shapes differ.
    """
    if not anchor_p.shape == positive_p.shape == negative_p.shape:
        raise ValueError(
            f"anchor, positive and negative must have one shape; "
            f"got {tuple(anchor_p.shape)}, {tuple(positive_p.shape)} and {tuple(negative_p.shape)}"
        )
    divisor = anchor_p.shape[1] if classes is None else classes
    to_positive = (anchor_p - positive_p).square().sum(dim=1) / divisor
    to_negative = (anchor_p - negative_p).square().sum(dim=1) / divisor
    return F.relu(to_positive - to_negative + margin).mean()
