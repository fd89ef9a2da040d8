"""Mutual information between the clusterings of two views."""

import torch
from torch import Tensor

__all__ = ["mutual_information_loss"]


def mutual_information_loss(first: Tensor, second: Tensor) -> Tensor:
    """Negative mutual information of the clusters of two views: invariant information clustering.

    The loss of Ji, Henriques and Vedaldi (Invariant Information Clustering, ICCV 2019): with the joint
    distribution P of the two clusters over the batch, made symmetric, the sum of
    P (log P_row + log P_column - log P). It is 0 for independent views and -log K, its minimum, when both
    views of every image agree for certain on one of K equally large clusters.

    Args:
        first: Cluster probabilities of the first views, rows that sum to 1, [B, K].
        second: Cluster probabilities of the second views in the same order, [B, K].

    Returns:
        The scalar loss in nats, in at least float32; finite, as are its gradients, also where P is 0.

    Raises:
        ValueError: If the shapes differ or there are no images.
    """
    if first.shape != second.shape or first.ndim != 2 or len(first) == 0:
        raise ValueError(f"both views must be [B, K]; got {tuple(first.shape)} and {tuple(second.shape)}")
    first, second = (view.to(torch.promote_types(view.dtype, torch.float32)) for view in (first, second))
    joint = first.T @ second / len(first)
    joint = (joint + joint.T) / 2
    marginal = _log(joint.sum(dim=1))
    return (joint * (marginal[:, None] + marginal - _log(joint))).sum()


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()
