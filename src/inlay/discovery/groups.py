"""Groups of images in a pile that known classes do not explain.

Asked one by one, an image can only be said to lie far from what is known, and many images of known classes do. A pile
says more: images of a new class lie together. So the pile is described as a mixture of the known classes and of
further groups, and images of known classes that were kept out of training are laid into it, unmarked. A group that
attracts as many of those as of the pile, for the size of both, is a corner of known classes; a group that attracts the
pile alone is new. And as the images laid in are treated like the pile, they tell how often a known image is taken for
new. Where groups begin is chance, so this is done several times over, and what is found is averaged.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.discovery.kmeans import kmeans
from inlay.discovery.statistics import ClassStatistics
from inlay.discovery.triage import calibrate_threshold
from inlay.discovery.whitening import known_metric

__all__ = ["LEAST_NEWNESS", "Newness", "newness", "stands_out", "threshold_in_company"]

_LOOKS = 5

LEAST_NEWNESS = 1.5 / _LOOKS
"""No image is new below this, however few known ones are as new: one look alone does not decide."""

_IMAGES_PER_GROUP = 20
_MOST_GROUPS = 50
# What images differ in beyond so many directions is noise, and takes time.
_DIRECTIONS = 256
_MOST_IMAGES = 20_000
_ROUNDS = 30
_CHUNK = 8192
# Counts that stand for what was seen of a group before anything was.
_PRIOR_PILE, _PRIOR_REFERENCE = 1.0, 0.5
_LEAST_WEIGHT = 1e-6


@dataclass(frozen=True, eq=False)
class Newness:
    """How surely images are new.

    Attributes:
        pile: Probability of each image of the pile, [N].
        reference: The same of each image that is known, [n], as if it lay in the pile by chance.
    """

    pile: Tensor
    reference: Tensor


@torch.no_grad()
def newness(
    pile: Tensor,
    reference: Tensor,
    known: ClassStatistics,
    looks_new: Tensor,
    reference_looks_new: Tensor,
    share: float,
    generator: torch.Generator,
) -> Newness:
    """Say how surely each image of a pile is new, from the company that it is in.

    Known classes and groups are spheres in the metric of known classes, within the 256 directions in which the images
    vary most: those with fixed centres, these with centres that k-means begins and 30 rounds of expectation and
    maximisation move. With n_g images of the pile and r_g of n reference images in group g, and N_k images of the pile
    known, the share of new ones among its images is q_g = 1 - (N_k / n) · r_g / n_g, at least 0; and an image is new
    with probability Σ_g p(g | x) q_g. A reference image is counted with the pile when it is asked for itself. What is
    returned is the mean over five such looks, which differ in where k-means begins.

    Args:
        pile: Features of the pile, [N, D].
        reference: Features of images of known classes that nothing was fitted to, [n, D], n above 0.
        known: Statistics of the known classes.
        looks_new: Images of the pile in which groups are looked for first, bool [N], one or more.
        reference_looks_new: The same for the reference, by the same rule, bool [n].
        share: First estimate of the share of new images in the pile, 0 to 1.
        generator: Source of the draws and of the seeds of k-means, on any device.

    Raises:
        ValueError: If the shapes do not go together, or there is nothing to compare.
    """
    size = known.mean.shape[1]
    if pile.ndim != 2 or reference.ndim != 2 or pile.shape[1] != size or reference.shape[1] != size:
        raise ValueError(f"features must be [N, {size}]; got {tuple(pile.shape)} and {tuple(reference.shape)}")
    if (looks_new.shape, reference_looks_new.shape) != (pile.shape[:1], reference.shape[:1]):
        raise ValueError("what looks new must be told of each image")
    if not bool(looks_new.any()) or len(reference) == 0:
        raise ValueError("newness needs an image that looks new, and reference images")
    chosen = _drawn(len(pile), _MOST_IMAGES, generator).to(pile.device)
    place = _Place.of(known, torch.cat([pile[chosen], reference]))
    points, laid_in = place(pile[chosen]), place(reference)
    # Without the reference the groups would follow chance in the pile, and attract more of it than of known images.
    begun = torch.cat([points[looks_new[chosen]], laid_in[reference_looks_new]])
    begun = begun if len(begun) else points
    whole = torch.cat([place(chunk) for chunk in torch.split(pile, _CHUNK)])
    centres = place(known.mean[known.counts > 0])
    looks = [_look(whole, points, laid_in, centres, begun, share, generator) for _ in range(_LOOKS)]
    return Newness(*(torch.stack(found).mean(dim=0) for found in zip(*looks, strict=True)))


def _look(
    whole: Tensor,
    points: Tensor,
    laid_in: Tensor,
    known: Tensor,
    begun: Tensor,
    share: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Look for groups once; see `newness`.

    Args:
        whole: Places of the pile, [N, d].
        points: Places of the images of it to which groups are fitted, [M, d].
        laid_in: Places of the reference, [n, d].
        known: Centres of the known classes, [C, d].
        begun: Places among which groups begin, [b, d].
        share: First estimate of the share of new images.
        generator: Source of the seeds of k-means.

    Returns:
        Probability of each image of the pile to be new, [N], and the same of the reference, [n].
    """
    count = max(2, min(_MOST_GROUPS, round(share * len(points) / _IMAGES_PER_GROUP)))
    seeds = kmeans(begun, min(count, len(begun)), generator, restarts=3, iterations=30).centroids
    mixture = _fitted(torch.cat([points, laid_in]), known, seeds)
    found, own = mixture.groups_of(points).sum(dim=0), mixture.groups_of(laid_in)
    known_images = _known_images(found, own.sum(dim=0) / len(laid_in), (1 - share) * len(points), len(points))
    stands_for = known_images / len(laid_in)
    purity = _purity(found, stands_for * (own.sum(dim=0) + _PRIOR_REFERENCE))
    in_the_pile = _purity(found + own, stands_for * (own.sum(dim=0) - own + _PRIOR_REFERENCE))
    parts = [mixture.groups_of(chunk) @ purity for chunk in torch.split(whole, _CHUNK)]
    return torch.cat(parts), (own * in_the_pile).sum(dim=1)


def threshold_in_company(reference: Tensor, error: float) -> float:
    """Return the newness above which an image is new.

    It is that of `calibrate_threshold` but where this would be the largest of few values. Most new images are about
    equally new, near the most, so that one odd reference image would decide that none is. Then it is the value of
    rank (n + 1)(1 - error), rounded: one more known image exceeds it with a probability of `error` give or take
    0.5 / (n + 1).

    Args:
        reference: Newness of the reference images, [n].
        error: Share of known images that may be taken for new, above 0 and below 1.

    Raises:
        InlayError: If there are too few for so small an error.
    """
    count = len(reference)
    rank = (count + 1) * (1 - error)
    if count - 1 < rank <= count and 0 < round(rank) < count:
        return float(reference.double().kthvalue(round(rank)).values)
    return calibrate_threshold(reference, error)


def stands_out(pile: Tensor, reference: Tensor, threshold: float, errors: float) -> bool:
    """Say whether more of a pile is new than chance explains: of known images, some are as new.

    The shares above the threshold, k / N of the pile and r / n of the reference, are compared as those of two samples:
    with p = (k + r) / (N + n), the standard error of their difference is √(p (1 - p) (1 / N + 1 / n)). Without a new
    class it is exceeded 1.96 times in one of forty piles, and three times in one of seven hundred.

    Args:
        pile: Newness of the images of the pile, [N], N above 0.
        reference: Newness of the reference images, [n], n above 0.
        threshold: Newness above which an image is new.
        errors: Standard errors that the difference must exceed.
    """
    above = [(values > threshold).double().mean().item() for values in (pile, reference)]
    sizes = [len(pile), len(reference)]
    both = sum(share * size for share, size in zip(above, sizes, strict=True)) / sum(sizes)
    error = math.sqrt(both * (1 - both) * sum(1 / size for size in sizes))
    return above[0] - above[1] > errors * error


@dataclass(frozen=True, eq=False)
class _Place:
    """Coordinates in which distances are those of the metric of known classes, in the leading directions."""

    centre: Tensor
    metric: Tensor

    @classmethod
    def of(cls, known: ClassStatistics, features: Tensor) -> "_Place":
        precision = torch.promote_types(features.dtype, torch.float32)
        # Distances are expanded, which loses digits far from the origin.
        place = cls(known.mean[known.counts > 0].mean(dim=0).to(precision), known_metric(known).to(precision))
        if len(place.metric) <= _DIRECTIONS:
            return place
        points = place(features)
        points -= points.mean(dim=0)
        _, axes = torch.linalg.eigh(points.T @ points)
        return cls(place.centre, place.metric @ axes[:, -_DIRECTIONS:])

    def __call__(self, features: Tensor) -> Tensor:
        return (features.to(self.metric) - self.centre) @ self.metric


@dataclass(frozen=True, eq=False)
class _Mixture:
    """Spheres of unit variance: known centres [C, D] and groups [G, D], with the logarithms of their weights."""

    known: Tensor
    groups: Tensor
    known_weights: Tensor
    group_weights: Tensor

    def shares_of(self, points: Tensor) -> Tensor:
        """Return the probability of each group and then of each known class for each point, [N, G + C]."""
        distances = torch.cat([_squared(points, self.groups), _squared(points, self.known)], dim=1)
        return (torch.cat([self.group_weights, self.known_weights]) - distances / 2).softmax(dim=1)

    def groups_of(self, points: Tensor) -> Tensor:
        """Return the probability of each group for each point, [N, G]."""
        return self.shares_of(points)[:, : len(self.groups)]


def _fitted(points: Tensor, known: Tensor, seeds: Tensor) -> _Mixture:
    """Move the groups, and weigh groups and known classes, so that points become likely."""
    groups, halves = len(seeds), (len(known), len(seeds))
    weights = [points.new_full((count,), 0.5 / count).log() for count in halves]
    mixture = _Mixture(known, seeds, *weights)
    for _ in range(_ROUNDS):
        shares = mixture.shares_of(points)
        mass = shares.sum(dim=0)
        moved = shares[:, :groups].T @ points / mass[:groups, None].clamp_min(_LEAST_WEIGHT)
        logarithms = (mass / len(points)).clamp_min(_LEAST_WEIGHT).log()
        mixture = _Mixture(known, moved, logarithms[groups:], logarithms[:groups])
    return mixture


def _known_images(found: Tensor, known_share: Tensor, first: float, images: int) -> float:
    """Return how many images of the pile are known, beginning with a first guess, so that all groups agree with it.

    Args:
        found: Images of the pile in each group, [G].
        known_share: Share of the images of known classes that are in each group, [G].
        first: The first guess.
        images: Images of the pile.
    """
    known = first
    for _ in range(_ROUNDS):
        known = images - float((found * _purity(found, known * known_share)).sum())
    return known


def _purity(found: Tensor, known: Tensor) -> Tensor:
    """Return the share of new images in groups of so many images, [G], with so many known ones among them, [..., G]."""
    return (1 - known / (found + _PRIOR_PILE)).clamp(0, 1)


def _squared(points: Tensor, centres: Tensor) -> Tensor:
    products = points @ centres.T
    return points.square().sum(dim=1, keepdim=True) - 2 * products + centres.square().sum(dim=1)


def _drawn(count: int, most: int, generator: torch.Generator) -> Tensor:
    """Draw at most so many of the numbers below a count, in rising order."""
    order = torch.randperm(count, generator=generator, device=generator.device)[:most]
    return order.sort().values
