"""Nearest neighbours among features, and partners drawn from them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.data.draws import Draws

__all__ = ["draw_partners", "nearest_neighbours"]

_SIMILARITIES = 2**26


@torch.no_grad()
def nearest_neighbours(features: Tensor, count: int, chunk: int | None = None) -> Tensor:
    """Find the most similar other rows of each row by cosine similarity.

    Args:
        features: Features, [N, D]; L2-normalised here.
        count: Neighbours per row, 1 to N - 1.
        chunk: Rows of the similarity matrix held at a time, 1 or more; None takes as many as a quarter of a gigabyte
            holds.

    Returns:
        Positions of the neighbours, nearest first and never the row itself, int64 [N, count]; of equally
        similar rows the lower position comes first.

    Raises:
        ValueError: If a count is out of its range or a feature is not finite.
    """
    if chunk is None:
        chunk = max(1, _SIMILARITIES // max(1, len(features)))
    if features.ndim != 2 or not 1 <= count < len(features) or chunk < 1:
        raise ValueError(
            f"features must be [N, D], count in 1..N - 1 and chunk 1 or more; "
            f"got {tuple(features.shape)}, {count} and {chunk}"
        )
    if not torch.isfinite(features).all():
        raise ValueError("features must be finite")
    directions = F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)))
    found: list[Tensor] = []
    for start in range(0, len(directions), chunk):
        similarity = directions[start : start + chunk] @ directions.T
        similarity.diagonal(offset=start).fill_(-torch.inf)
        found.append(_largest(similarity, count))
    return torch.cat(found)


def draw_partners(indices: Tensor, neighbours: Tensor, share: float, draws: Draws) -> Tensor:
    """Pair each image with one of its neighbours, or with itself.

    Args:
        indices: Positions of the images, int64 [B].
        neighbours: Positions of the neighbours of every image, int64 [N, count], on the same device.
        share: Probability of a neighbour, each of them equally likely; 0 to 1.
        draws: Source of the draws, of B rows, on the same device.

    Returns:
        Positions of the partners, int64 [B].

    Raises:
        ValueError: If the share is outside 0..1 or a shape is wrong.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must lie in 0..1; got {share}")
    if indices.ndim != 1 or neighbours.ndim != 2 or neighbours.shape[1] == 0:
        shapes = f"{tuple(indices.shape)} and {tuple(neighbours.shape)}"
        raise ValueError(f"indices must be [B] and neighbours [N, count]; got {shapes}")
    partners = neighbours[indices, draws.choice(neighbours.shape[1])]
    return torch.where(draws.chance(share), partners, indices)


def _largest(values: Tensor, count: int) -> Tensor:
    """Columns of the `count` largest values of each row, largest first, lower columns first among equals."""
    # topk does not say which of several equals it takes, and a stable sort of whole rows is far slower.
    threshold = values.topk(count, dim=1).values[:, -1:]
    above, equal = values > threshold, values == threshold
    wanted = count - above.sum(dim=1, keepdim=True)
    kept = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= wanted))
    columns = kept.nonzero()[:, 1].view(len(values), count)
    order = values.gather(1, columns).sort(dim=1, descending=True, stable=True).indices
    return columns.gather(1, order)
