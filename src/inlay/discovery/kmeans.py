"""K-means that stays on the device of its points and repeats itself bit for bit."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["KMeans", "kmeans"]

# Rows of the distance matrix held at a time.
_CHUNK = 16384


@dataclass(frozen=True, eq=False)
class KMeans:
    """A clustering.

    Attributes:
        centroids: Cluster centres, [k, D].
        labels: The nearest centre of each point, [N].
        inertia: Sum of squared distances of the points to their centres.
    """

    centroids: Tensor
    labels: Tensor
    inertia: float


@torch.no_grad()
def kmeans(
    points: Tensor,
    k: int,
    generator: torch.Generator,
    restarts: int = 10,
    iterations: int = 100,
    spherical: bool = False,
) -> KMeans:
    """Cluster points by Lloyd's algorithm from k-means++ seeds and keep the best of several starts.

    Written here because scikit-learn's takes neither a torch generator nor points on a GPU.

    Args:
        points: Points, [N, D].
        k: Clusters, 1 to N.
        generator: Source of the seeds, on any device.
        restarts: Independent starts, 1 or more.
        iterations: Most rounds of a start, 1 or more.
        spherical: Cluster directions: points are L2-normalised, and so are the centroids in each round.

    Returns:
        The clustering of least inertia, in at least float32; centroids are unit vectors if `spherical`.

    Raises:
        ValueError: If there are more clusters than points, a count is below 1 or a point is not finite.
    """
    if points.ndim != 2 or not 1 <= k <= len(points):
        raise ValueError(f"k must lie in 1..{len(points)}, the number of points; got {k}")
    if restarts < 1 or iterations < 1:
        raise ValueError(f"restarts and iterations must be 1 or more; got {restarts} and {iterations}")
    if not torch.isfinite(points).all():
        raise ValueError("points must be finite")
    points = points.to(torch.promote_types(points.dtype, torch.float32))
    # Distances are expanded as |x|² - 2xc + |c|², which loses digits far from the origin.
    shift = torch.zeros_like(points[0]) if spherical else points.mean(dim=0)
    moved = F.normalize(points) if spherical else points - shift
    runs = (_lloyd(moved, _seeds(moved, k, generator), iterations, spherical) for _ in range(restarts))
    best = min(runs, key=lambda run: run.inertia)
    return KMeans(best.centroids + shift, best.labels, best.inertia)


def _seeds(points: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Draw k points, each with probability proportional to its squared distance from those before, [k, D]."""
    weights = torch.ones_like(points[:, 0])
    chosen: list[Tensor] = []
    for _ in range(k):
        # The first of exponential clocks with these rates rings at i with probability ∝ weights[i]; unlike a
        # cumulative sum it is reproducible on every device.
        waits = torch.empty(len(points), device=generator.device).exponential_(generator=generator)
        waits = waits.clamp_min(torch.finfo(waits.dtype).tiny).to(points)
        chosen.append(points[(weights / waits).argmax()])
        distances = torch.cat([(chunk - chosen[-1]).square().sum(dim=1) for chunk in _chunks(points)])
        weights = distances if len(chosen) == 1 else torch.minimum(weights, distances)
    return torch.stack(chosen)


def _lloyd(points: Tensor, centroids: Tensor, iterations: int, spherical: bool) -> KMeans:
    labels, distances = _nearest(points, centroids)
    for _ in range(iterations):
        centroids = _centres(points, labels, distances, len(centroids))
        if spherical:
            centroids = F.normalize(centroids)
        previous = labels
        labels, distances = _nearest(points, centroids)
        if torch.equal(labels, previous):
            break
    parts = zip(_chunks(points), _chunks(labels), strict=True)
    inertia = sum(float((chunk - centroids[part]).square().sum(dtype=torch.float64)) for chunk, part in parts)
    return KMeans(centroids, labels, inertia)


def _chunks(rows: Tensor) -> tuple[Tensor, ...]:
    return torch.split(rows, _CHUNK)


def _nearest(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Find each point's nearest centre, [N], and its squared distance to it, [N]."""
    squares = centroids.square().sum(dim=1)
    found = [(squares - 2 * chunk @ centroids.T).min(dim=1) for chunk in _chunks(points)]
    labels = torch.cat([part.indices for part in found])
    distances = torch.cat([part.values for part in found]) + points.square().sum(dim=1)
    return labels, distances


def _centres(points: Tensor, labels: Tensor, distances: Tensor, k: int) -> Tensor:
    """Average the points of each cluster, [k, D]; an empty cluster takes one of the worst placed points."""
    # A product with one-hot labels, as scattered additions on a GPU have no fixed order.
    sums = points.new_zeros(k, points.shape[1])
    counts = points.new_zeros(k)
    for chunk, part in zip(_chunks(points), _chunks(labels), strict=True):
        members = F.one_hot(part, k).to(points)
        sums += members.T @ chunk
        counts += members.sum(dim=0)
    centroids = sums / counts.clamp_min(1)[:, None]
    empty = torch.nonzero(counts == 0).flatten()
    centroids[empty] = points[distances.topk(len(empty)).indices]
    return centroids
