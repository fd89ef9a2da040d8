"""Repair of class statistics and of a linear head when classes are merged, split or given up."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from inlay.discovery.refit import refit_linear
from inlay.discovery.statistics import ClassStatistics, class_statistics

__all__ = ["closed_head", "merged", "padded", "pooled_moments", "refitted_head", "split", "without"]

# What `class_statistics` adds to every variance.
_VARIANCE_FLOOR = 1e-5
# Far beyond the differences between scores of a head, small enough for half precision.
_MARGIN = 1000.0
# Correlations kept in half precision may lack a root; so much more variance, of 1, gives nearly all of them one.
_JITTER = 1e-3


def pooled_moments(counts: Tensor, means: Tensor, spreads: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and unbiased spread of the union of k sets of samples, exactly, from those of the sets.

    The scatter of the union is the sum of the scatters within the sets and of the n·(μ - μ̄)(μ - μ̄)ᵀ between them.

    Args:
        counts: Samples in each set, [k], together 2 or more.
        means: Their means, [k, D].
        spreads: Their unbiased covariances, [k, D, D], or variances, [k, D]; that of a set of one is not read.

    Returns:
        The mean, [D], and the covariance, [D, D], or variance, [D], in float64.
    """
    sizes, centres, within = counts.double(), means.double(), spreads.double()
    mean = sizes @ centres / sizes.sum()
    away = centres - mean
    between = away.square() if within.ndim == 2 else away[:, :, None] * away[:, None, :]
    scatter = torch.tensordot(sizes - 1, within, 1) + torch.tensordot(sizes, between, 1)
    return mean, scatter / (sizes.sum() - 1)


def merged(statistics: ClassStatistics, sources: Sequence[int], into: int) -> ClassStatistics:
    """Give all samples of some classes to another class.

    Mean, covariance and count of that class become exactly those of the union, but for the rounding of what is
    stored. Where classes share standard deviations, those of the union count as one class in the shared mean; pooled
    correlations stay.

    Args:
        statistics: Statistics of all classes.
        sources: Classes that become empty.
        into: Class that takes their samples over.
    """
    members = [index for index in (into, *sources) if statistics.counts[index] > 0]
    rest = without(statistics, sources)
    if not members:
        return rest
    if len(members) == 1:
        return _with_row(rest, into, statistics, members[0])
    counts, std = statistics.counts[members], statistics.std.expand_as(statistics.mean)[members].double()
    spreads = std.square()
    if statistics.kind == "full":
        spreads = torch.stack([statistics.covariance(index) for index in members])
    mean, spread = pooled_moments(counts, statistics.mean[members], spreads)
    floor = _VARIANCE_FLOOR * (len(members) - 1) / (int(counts.sum()) - 1)
    variance = (spread if spread.ndim == 1 else spread.diagonal()) + floor
    return _with_union(rest, into, int(counts.sum()), mean, variance, spread)


def without(statistics: ClassStatistics, classes: Sequence[int]) -> ClassStatistics:
    """Empty some classes: they are never sampled again; what all classes share stays."""
    kept = {name: tensor.clone() for name, tensor in statistics.tensors().items()}
    for name in statistics.by_class:
        kept[name][list(classes)] = 0
    return ClassStatistics.from_tensors(kept)


def padded(statistics: ClassStatistics, classes: int) -> ClassStatistics:
    """Append empty classes until there are `classes` of them.

    Raises:
        ValueError: If there are more already.
    """
    wanted = classes - len(statistics)
    if wanted < 0:
        raise ValueError(f"there are {len(statistics)} classes already, more than {classes}")
    kept = statistics.tensors()
    for name in statistics.by_class:
        kept[name] = torch.cat([kept[name], kept[name].new_zeros(wanted, *kept[name].shape[1:])])
    return ClassStatistics.from_tensors(kept)


def split(statistics: ClassStatistics, index: int, features: Tensor, labels: Tensor) -> ClassStatistics:
    """Empty a class and append the classes that it was split into.

    Args:
        statistics: Statistics of all classes.
        index: Class that becomes empty.
        features: Features of its images, [N, D].
        labels: The part that each belongs to, [N], counted from 0.

    Raises:
        ValueError: If a part has no image, or none has two.
    """
    device = statistics.mean.device
    parts = class_statistics(features.to(device), labels.to(device), int(labels.max()) + 1, statistics.kind)
    return without(statistics, [index]).joined(parts)


@torch.no_grad()
def closed_head(head: nn.Linear, closed: Collection[int], outputs: int | None = None) -> nn.Linear:
    """Return a copy of a head in which some outputs can never win.

    A closed output has the weights of the first open one and a bias lower by 1000. So it is below that one for every
    input, its share of a softmax is 0, and it needs nothing but finite numbers in an ordinary layer, which every
    export keeps.

    Args:
        head: Head over all classes.
        closed: Outputs to close; those that are appended are closed too.
        outputs: Number of outputs of the copy; None keeps it.

    Raises:
        ValueError: If no output would be open, there would be fewer outputs, or one to close is not there.
    """
    old = head.out_features
    size = old if outputs is None else outputs
    if size < old or not all(0 <= index < size for index in closed):
        raise ValueError(f"a head of {old} outputs cannot become one of {size} with {sorted(closed)} closed")
    shut = sorted({*closed, *range(old, size)})
    open_outputs = sorted(set(range(size)) - set(shut))
    if not open_outputs:
        raise ValueError("a head needs at least one open output")
    wider = nn.Linear(head.in_features, size, device="meta").to_empty(device=head.weight.device).to(head.weight.dtype)
    first = open_outputs[0]
    wider.weight[:old], wider.bias[:old] = head.weight, head.bias
    wider.weight[shut], wider.bias[shut] = head.weight[first], head.bias[first] - _MARGIN
    return wider.requires_grad_(False).eval()


@torch.no_grad()
def refitted_head(
    statistics: ClassStatistics,
    closed: Collection[int],
    per_class: int,
    generator: torch.Generator,
    scale: float = 1.0,
    weight_decay: float = 1e-4,
    iterations: int = 200,
) -> nn.Linear:
    """Fit a linear head anew on features drawn from the statistics of all open classes.

    Args:
        statistics: Statistics of all classes.
        closed: Classes that are given up, see `closed_head`; what is left of their statistics is not sampled.
        per_class: Samples of each class.
        generator: Source of the samples, on any device.
        scale: Factor on the standard deviations.
        weight_decay: Strength of the penalty, see `refit_linear`.
        iterations: Most iterations of the fit.

    Returns:
        The head, [N, D] to [N, K], float32, frozen.
    """
    samples, labels = _drawn(without(statistics, sorted(closed)), per_class, generator, scale)
    with torch.enable_grad():
        weight, bias = refit_linear(samples, labels, len(statistics), weight_decay, iterations)
    head = nn.Linear(weight.shape[1], len(weight), device="meta").to_empty(device=weight.device)
    head.weight.copy_(weight)
    head.bias.copy_(bias)
    return closed_head(head, closed)


def _drawn(
    statistics: ClassStatistics, per_class: int, generator: torch.Generator, scale: float
) -> tuple[Tensor, Tensor]:
    """Draw features as `ClassStatistics.sample` does, but quickly, with triangular roots, and centred.

    Features of two or more that have exactly the mean of their class make a better head where they are few.
    """
    size = (statistics.present, per_class, statistics.mean.shape[1])
    noise = torch.randn(size, generator=generator, device=generator.device).to(statistics.mean)
    if per_class > 1:
        noise = (noise - noise.mean(dim=1, keepdim=True)) * (per_class / (per_class - 1)) ** 0.5
    if statistics.correlation is None:
        return statistics.features_at(noise, scale)
    present = statistics.counts.nonzero().flatten()
    common = _triangular_root(statistics.correlation) if statistics.kind == "pooled" else None
    samples = []
    for index, own in zip(present.tolist(), noise, strict=True):
        root = _triangular_root(statistics.correlation[index]) if common is None else common
        samples.append(statistics.mean[index] + scale * statistics.std[index] * (own @ root.T))
    return torch.cat(samples), present.repeat_interleave(per_class)


def _triangular_root(correlation: Tensor) -> Tensor:
    """Return a lower triangular root L of a correlation matrix, L·Lᵀ ≈ it, float32, with rows of length 1."""
    exact, jitter = correlation.float(), _JITTER
    while True:
        root, failed = torch.linalg.cholesky_ex(exact + jitter * torch.eye(len(exact), device=exact.device))
        if not failed:
            return torch.nn.functional.normalize(root)
        jitter *= 4


def _with_row(rest: ClassStatistics, into: int, source: ClassStatistics, index: int) -> ClassStatistics:
    """Copy one class of the source to another place."""
    kept = rest.tensors()
    for name in rest.by_class:
        kept[name][into] = source.tensors()[name][index]
    return ClassStatistics.from_tensors(kept)


def _with_union(
    rest: ClassStatistics, into: int, count: int, mean: Tensor, variance: Tensor, spread: Tensor
) -> ClassStatistics:
    """Put the moments of a union in the place of a class; `variance` includes the floor."""
    centres, counts, std = rest.mean.clone(), rest.counts.clone(), rest.std.clone()
    centres[into], counts[into] = mean.float(), count
    deviation = variance.sqrt()
    if rest.kind == "shared":
        others = int((counts > 0).sum()) - 1
        return ClassStatistics(centres, counts, ((others * std.double() + deviation) / (others + 1)).float())
    std[into] = deviation.float()
    if rest.correlation is None or rest.kind == "pooled":
        return ClassStatistics(centres, counts, std, rest.correlation)
    correlation = rest.correlation.clone()
    exact = spread / (deviation[:, None] * deviation)
    exact.fill_diagonal_(1.0)
    correlation[into] = exact.half()
    return ClassStatistics(centres, counts, std, correlation)
