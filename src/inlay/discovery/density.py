"""Classes as Gaussians: which of them makes an image most likely, from stored statistics alone."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from inlay.discovery.statistics import ClassStatistics
from inlay.discovery.whitening import mean_within_class_covariance

__all__ = ["DensityHead", "density_head", "matched_temperature", "needed_floor", "shared_part", "tempered"]

_LEAST_SHARED = 0.2
_BISECTIONS = 40
_TEMPERATURES = (1e-3, 1e6)
# The exponential of minus this is 0 in double precision too, and unlike infinity it can be computed with.
_OUT_OF_REACH = 1000.0


class DensityHead(nn.Module):
    """Scores features by the log density of one Gaussian per class, divided by a temperature.

    In coordinates y = x @ transform, the covariance of class c is ν_c·I + U_c·diag(λ_c - ν_c)·U_cᵀ with orthonormal
    U_c. A class that is not present is so far below the others that its probability is 0.

    Args:
        transform: To the coordinates in which the common part of the covariances is the identity, [D, D].
        means: Class means there, [C, D].
        directions: U, [C, D, R].
        variances: λ, [C, R], above 0.
        noise: ν, [C], above 0.
        present: Classes that can be predicted, bool [C], one or more.

    Attributes:
        temperature: Divisor of the scores, above 0, a scalar tensor; 1 until it is set.

    Raises:
        ValueError: If the shapes do not go together.
    """

    transform: Tensor
    means: Tensor
    directions: Tensor
    gains: Tensor
    precisions: Tensor
    constants: Tensor
    present: Tensor
    temperature: Tensor

    def __init__(
        self, transform: Tensor, means: Tensor, directions: Tensor, variances: Tensor, noise: Tensor, present: Tensor
    ) -> None:
        super().__init__()
        classes, size, rank = directions.shape
        shapes = [tuple(part.shape) for part in (transform, means, variances, noise, present)]
        if shapes != [(size, size), (classes, size), (classes, rank), (classes,), (classes,)]:
            raise ValueError(f"directions {(classes, size, rank)} do not go with parts of the shapes {shapes}")
        self.register_buffer("transform", transform)
        self.register_buffer("means", means)
        self.register_buffer("directions", directions)
        self.register_buffer("gains", 1 / variances - 1 / noise[:, None])
        self.register_buffer("precisions", 1 / noise)
        self.register_buffer("constants", variances.log().sum(dim=1) + (size - rank) * noise.log())
        self.register_buffer("present", present)
        self.register_buffer("temperature", transform.new_ones(()))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "DensityHead":
        """Rebuild a head from its state dict.

        Raises:
            KeyError: If a tensor is missing.
            RuntimeError: If one is not known.
            ValueError: If the shapes do not go together.
        """
        like = {name: tensor.to("meta") for name, tensor in tensors.items()}
        parts = (like[name] for name in ("transform", "means", "directions", "gains", "precisions", "present"))
        head = cls(*parts)
        head.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)
        return head.eval()

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores of all classes, [B, C], for features [B, D]."""
        classes, size, rank = self.directions.shape
        # Expanded, as differences of all points from all means would not fit into memory; that loses digits far from
        # the origin.
        origin = self.means.mean(dim=0)
        points, means = features.to(self.transform.dtype) @ self.transform - origin, self.means - origin
        products = points @ means.T
        distances = points.square().sum(dim=1, keepdim=True) - 2 * products + means.square().sum(dim=1)
        coordinates = points @ self.directions.permute(1, 0, 2).reshape(size, classes * rank)
        centres = torch.bmm(means[:, None], self.directions)[:, 0]
        along = (coordinates.view(-1, classes, rank) - centres).square() * self.gains
        scores = -(distances * self.precisions + along.sum(dim=2) + self.constants) / (2 * self.temperature)
        lowest = scores.masked_fill(~self.present, torch.inf).amin(dim=1, keepdim=True)
        return torch.where(self.present, scores, lowest - _OUT_OF_REACH)


@torch.no_grad()
def density_head(
    statistics: ClassStatistics,
    shrinkage: float = 0.8,
    floor: float = 0.05,
    rank: int = 64,
    by_counts: bool = False,
) -> DensityHead:
    """Return the head that says under which class features are most likely.

    The covariance of class c is taken as (1 - a)·Σ_c + a·W + s·t·I, with W the mean of all Σ_c and t its mean variance.
    Of the part that is a class's own, the leading directions are kept and the rest is spread evenly over the others.

    The mean of n images is off by W / n, by which images seem further from small classes than from large ones: by
    tr(P·W) / n, with P the inverse of the part that classes share. With many features that decides; `by_counts` takes
    it off again.

    Args:
        statistics: Statistics of C classes, of which one or more are not empty.
        shrinkage: a, above 0 and at most 1: how much the classes share.
        floor: s, above 0.
        rank: Directions of each class, R; all where there are fewer.
        by_counts: Whether to allow for the number of images of each class.

    Raises:
        ValueError: If all classes are empty or a number is out of its range.
    """
    if not 0 < shrinkage <= 1 or floor <= 0 or rank < 1:
        raise ValueError(f"need 0 < shrinkage <= 1, floor > 0, rank >= 1; got {shrinkage}, {floor} and {rank}")
    within = mean_within_class_covariance(statistics)
    size = len(within)
    spread = (floor * within.diagonal().mean()).clamp_min(torch.finfo(torch.float32).tiny)
    values, vectors = torch.linalg.eigh(shrinkage * within + spread * torch.eye(size).to(within))
    transform = vectors * values.clamp_min(spread).rsqrt()
    # Classes that share everything have no directions of their own; one that changes nothing stands for them.
    rank = min(rank, size) if shrinkage < 1 else 1
    means = statistics.mean.double() @ transform
    directions, variances = means.new_zeros(len(means), size, rank), means.new_ones(len(means), rank)
    noise = means.new_ones(len(means))
    for index in torch.nonzero(statistics.counts > 0).flatten().tolist() if shrinkage < 1 else []:
        own = (1 - shrinkage) * transform.T @ statistics.covariance(index) @ transform
        found, axes = torch.linalg.eigh(own)
        found = found.clamp_min(0)
        directions[index], variances[index] = axes[:, size - rank :], 1 + found[size - rank :]
        noise[index] = 1 + (found[: size - rank].mean() if rank < size else 0)
    present = statistics.counts > 0
    parts = (transform.float(), means.float(), directions.float(), variances.float(), noise.float())
    head = DensityHead(*parts, present).eval()
    if by_counts:
        excess = (transform.T @ within * transform.T).sum()
        head.constants -= (excess / statistics.counts.clamp_min(1)).to(head.constants)
    return head


def shared_part(statistics: ClassStatistics, prior: float = 4.0) -> float:
    """Return how much of their covariances classes should share, given how well each is known.

    A covariance of n samples in D dimensions is trusted as much as that of all classes together if n = prior · D. At
    least a fifth is shared, and everything where only pooled correlations are known.

    Args:
        statistics: Statistics of the classes, of which one or more are not empty.
        prior: Samples per dimension for which the common covariance counts, above 0.
    """
    if statistics.kind == "pooled":
        return 1.0
    weight = prior * statistics.mean.shape[1]
    samples = statistics.counts[statistics.counts > 0].double().mean().item()
    return max(_LEAST_SHARED, weight / (weight + samples))


def needed_floor(statistics: ClassStatistics, floor: float) -> float:
    """Return how much of the mean variance has to be added in every direction, given how well the spread is known.

    Pooled correlations of m images in D dimensions are off by about D / m, and as much less of the floor is needed
    where images are many. Covariances of single classes need all of it.

    Args:
        statistics: Statistics of the classes.
        floor: What is added where images are no more than dimensions, above 0.
    """
    if statistics.kind != "pooled":
        return floor
    images = float((statistics.counts - 1).clamp_min(0).sum())
    return floor * min(1.0, statistics.mean.shape[1] / max(images, 1.0))


@torch.no_grad()
def tempered(
    head: DensityHead,
    statistics: ClassStatistics,
    reference: nn.Module,
    generator: torch.Generator,
    per_class: int = 20,
) -> DensityHead:
    """Set the temperature of a head so that it is as confident as another head on features drawn from the classes.

    Log densities in many dimensions are far apart, so that their softmax would always be sure.

    Args:
        head: The head, which is changed.
        statistics: Statistics of its classes.
        reference: Head over the same classes, whose mean confidence is taken over.
        generator: Source of the features.
        per_class: Features drawn of each class.

    Returns:
        The head.
    """
    samples, _ = statistics.sample(per_class, generator)
    confidence = float(reference(samples).float().softmax(dim=1).amax(dim=1).mean())
    head.temperature.fill_(matched_temperature(head(samples), confidence))
    return head


@torch.no_grad()
def matched_temperature(scores: Tensor, confidence: float) -> float:
    """Return the temperature at which the mean largest probability of scores is as asked.

    Args:
        scores: Scores, [N, C].
        confidence: Mean of the largest softmax probability, above 1 / C and below 1.

    Returns:
        The temperature, within 0.001 to 1,000,000.
    """
    low, high = (torch.tensor(bound, dtype=torch.float64).log() for bound in _TEMPERATURES)
    wide = scores.double()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        reached = (wide / middle.exp()).softmax(dim=1).amax(dim=1).mean()
        low, high = (middle, high) if reached > confidence else (low, middle)
    return float(((low + high) / 2).exp())
