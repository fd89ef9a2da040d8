"""Contrastive loss in which the neighbours among past features are positives too."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["neighbourhood_contrastive"]


def neighbourhood_contrastive(
    query: Tensor,
    key: Tensor,
    queue: Tensor,
    neighbours: int,
    temperature: float = 0.05,
    share: float = 0.2,
    quirk: bool = False,
) -> Tensor:
    """Pull each image towards its other view and its neighbours in a queue: NCL's loss for unlabelled images.

    It is the cross-entropy of a softmax over the cosine similarities of a query with its key and with all M queue
    entries. The target gives `share` to the key and spreads the rest equally over the most similar entries.
    Gradients flow through the query alone.

    Args:
        query: Features of the first views, [B, D]; L2-normalised here.
        key: Features of the second views in the same order, [B, D]; L2-normalised here.
        queue: Past features, unit vectors, [M, D].
        neighbours: Number K of queue entries that are positives, 1 to M.
        temperature: Divisor of the cosine similarities, above 0.
        share: Part of the target on the key, 0 to 1.
        quirk: Rank as the published code does: the key competes with the queue entries for the K places. Where it
            wins one, K - 1 entries remain, each with (1 - share) / K, and the key still has `share`: the target
            sums to 1 - (1 - share) / K instead of 1.

    Returns:
        The scalar mean over images, in at least float32.

    Raises:
        ValueError: If a shape is wrong or a number is out of its range.
    """
    _check(query, key, queue, neighbours)
    if temperature <= 0 or not 0 <= share <= 1:
        raise ValueError(f"temperature must be above 0 and share in 0..1; got {temperature} and {share}")
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key = F.normalize(query.to(dtype), dim=1), F.normalize(key.detach().to(dtype), dim=1)
    own = (query * key).sum(dim=1, keepdim=True)
    past = query @ queue.detach().to(dtype).T
    log_p = (torch.cat([own, past], dim=1) / temperature).log_softmax(dim=1)
    nearest = log_p[:, 1:].topk(neighbours, dim=1).values
    positives = nearest.sum(dim=1)
    if quirk:
        displaced = (log_p[:, 0] >= nearest[:, -1]).to(dtype)
        positives = positives - displaced * nearest[:, -1]
    return -(share * log_p[:, 0] + (1 - share) / neighbours * positives).mean()


def _check(query: Tensor, key: Tensor, queue: Tensor, neighbours: int) -> None:
    if query.ndim != 2 or query.shape != key.shape or len(query) == 0:
        raise ValueError(f"query and key must be [B, D]; got {tuple(query.shape)} and {tuple(key.shape)}")
    if queue.ndim != 2 or queue.shape[1] != query.shape[1]:
        raise ValueError(f"the queue must be [M, {query.shape[1]}]; got {tuple(queue.shape)}")
    if not 1 <= neighbours <= len(queue):
        raise ValueError(f"neighbours must be in 1..{len(queue)}, the size of the queue; got {neighbours}")
