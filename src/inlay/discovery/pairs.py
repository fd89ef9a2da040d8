"""Pairs of images of a batch that should or should not share a class, and the loss that follows from them."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["cosine_pairs", "extreme_pairs", "pairwise_bce", "rank_pairs"]


@torch.no_grad()
def rank_pairs(features: Tensor, k: int = 5) -> Tensor:
    """Pair images whose k largest features are the same ones: the ranking statistics of AutoNovel.

    The order among the k does not count. Of equal features those of the lower dimension are the larger.

    Args:
        features: Features of the batch, [B, D]; no gradient flows to them.
        k: Features that must coincide, 1 to D.

    Returns:
        1 where two images are a pair and 0 elsewhere, [B, B], in at least float32; 1 on the diagonal.

    Raises:
        ValueError: If the shape is wrong or k is out of its range.
    """
    if features.ndim != 2 or not 1 <= k <= features.shape[1]:
        raise ValueError(f"features must be [B, D] and k in 1..D; got {tuple(features.shape)} and {k}")
    among_largest = (_ranks(features) < k).to(_precision(features))
    return (among_largest @ among_largest.T > k - 0.5).to(among_largest.dtype)


@torch.no_grad()
def cosine_pairs(features: Tensor, threshold: float = 0.95) -> Tensor:
    """Pair images whose features have a cosine similarity above a threshold, as in NCL.

    Args:
        features: Features of the batch, [B, D]; no gradient flows to them.
        threshold: Similarity that a pair must exceed, -1 to 1.

    Returns:
        1 where two images are a pair and 0 elsewhere, [B, B], in at least float32; 1 on the diagonal.

    Raises:
        ValueError: If the shape is wrong or the threshold is out of its range.
    """
    if features.ndim != 2 or not -1 <= threshold <= 1:
        raise ValueError(f"features must be [B, D] and threshold in -1..1; got {tuple(features.shape)} and {threshold}")
    directions = F.normalize(features.to(_precision(features)), dim=1)
    similar = directions @ directions.T > threshold
    return (similar | _itself(features)).to(directions.dtype)


@torch.no_grad()
def extreme_pairs(scores: Tensor, count: int = 10) -> tuple[Tensor, Tensor]:
    """Take the most similar images of each image as positives and the least similar ones as negatives.

    This is the choice of ResTune's ranking loss. An image is always its own positive, in addition to the others
    if its score with itself is not among the largest. With fewer than 2 · count images no image is both: half of
    each row, rounded up, is positive and the rest is negative. Of equal scores those of the lower column are the
    larger.

    Args:
        scores: Similarity of the images of a batch to each other, [B, B]; no gradient flows to them.
        count: Positives and negatives per row, 1 or more.

    Returns:
        Labels, 1 for positives and 0 elsewhere, [B, B]; and a mask, 1 for positives and negatives and 0 for the
        ignored, [B, B]; both in at least float32.

    Raises:
        ValueError: If the scores are not square or the count is too small.
    """
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or count < 1:
        raise ValueError(f"scores must be [B, B] and count 1 or more; got {tuple(scores.shape)} and {count}")
    images, ranks = len(scores), _ranks(scores)
    positive = (ranks < min(count, (images + 1) // 2)) | _itself(scores)
    negative = ranks >= images - min(count, images // 2)
    dtype = _precision(scores)
    return positive.to(dtype), (positive | negative).to(dtype)


def pairwise_bce(
    first_p: Tensor,
    second_p: Tensor,
    pairs: Tensor,
    epsilon: float = 1e-7,
    mask: Tensor | None = None,
) -> Tensor:
    """Teach the probability that two images share a class the label of their pair.

    That probability is the inner product s of the class probabilities of image i in the first view and image j in
    the second. The loss is -y log(s + epsilon) - (1 - y) log(1 - s + epsilon), as in AutoNovel. Gradients flow
    through both views.

    Args:
        first_p: Class probabilities of the first views, rows that sum to 1, [B, K].
        second_p: Class probabilities of the second views in the same order, [B, K]; may be `first_p`.
        pairs: Labels y of the pairs, 0 to 1, [B, B], row i for the first view of image i.
        epsilon: Bound of the logarithms, above 0.
        mask: Weight of each pair, 0 to ignore it, [B, B]; 1 everywhere unless given.

    Returns:
        The scalar mean over all B² ordered pairs, ignored ones included, in at least float32.

    Raises:
        ValueError: If a shape is wrong, there are no images, or epsilon is not above 0.
    """
    if first_p.ndim != 2 or first_p.shape != second_p.shape or len(first_p) == 0:
        raise ValueError(f"both views must be [B, K]; got {tuple(first_p.shape)} and {tuple(second_p.shape)}")
    square = (len(first_p), len(first_p))
    if pairs.shape != square or (mask is not None and mask.shape != square):
        shapes = [tuple(given.shape) for given in (pairs, mask) if given is not None]
        raise ValueError(f"pairs and mask must be {list(square)}; got {shapes}")
    if epsilon <= 0:
        raise ValueError(f"epsilon must be above 0; got {epsilon}")
    dtype = _precision(first_p)
    # Rounding can take the product of two certain rows above 1, out of the domain of the logarithm.
    same = (first_p.to(dtype) @ second_p.to(dtype).T).clamp(max=1)
    pairs = pairs.to(dtype)
    losses = -pairs * (same + epsilon).log() - (1 - pairs) * (1 - same + epsilon).log()
    return (losses if mask is None else losses * mask.to(dtype)).mean()


def _ranks(values: Tensor) -> Tensor:
    """Rank of each value in its row, 0 for the largest."""
    return values.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


def _itself(rows: Tensor) -> Tensor:
    return torch.eye(len(rows), dtype=torch.bool, device=rows.device)


def _precision(values: Tensor) -> torch.dtype:
    return torch.promote_types(values.dtype, torch.float32)
