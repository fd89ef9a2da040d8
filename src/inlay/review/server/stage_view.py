"""What a page shows of a class and of a stage: typical and doubtful images, neighbours, and a map."""

import torch
from torch import Tensor

from inlay.medoids import typical

__all__ = ["doubtful", "nearest", "plane", "typical"]


def plane(features: Tensor) -> Tensor:
    """Lay features out in the plane along their two directions of largest variance.

    Args:
        features: [N, D], N of 1 or more.

    Returns:
        [N, 2], as large as fits into -1..1; the largest weight of each direction is positive, so that the same
        features are always laid out in the same way.
    """
    centred = features.double() - features.double().mean(dim=0)
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :2]
    largest = directions.gather(0, directions.abs().argmax(dim=0, keepdim=True))
    points: Tensor = centred @ (directions * torch.where(largest < 0, -1.0, 1.0))
    if points.shape[1] < 2:
        points = torch.cat([points, torch.zeros_like(points)], dim=1)
    points = points - (points.amax(dim=0) + points.amin(dim=0)) / 2
    return points / points.abs().max().clamp_min(1e-12)


def doubtful(scores: Tensor, own: int, count: int) -> list[int]:
    """Return the rows in which a class wins by the least, or loses by the most, the most doubtful first.

    Args:
        scores: Scores of all classes, [n, C].
        own: The class of all rows.
        count: Most rows to return.
    """
    others = scores.clone()
    others[:, own] = -torch.inf
    return (scores[:, own] - others.amax(dim=1)).argsort(stable=True)[:count].tolist()


def nearest(means: Tensor, own: int, others: list[int]) -> int | None:
    """Return the class of `others` whose mean, a row of [C, D], is nearest to that of `own`; None if there is none."""
    if not others:
        return None
    away = (means[others] - means[own]).square().sum(dim=1)
    return others[int(away.argmin())]
