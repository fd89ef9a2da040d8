"""Class statistics of features: what is kept of a class when its images are gone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from inlay.errors import InlayError

__all__ = ["ClassStatistics", "StatisticsKind", "class_statistics"]

StatisticsKind = Literal["full", "pooled", "diagonal", "shared"]

_VARIANCE_FLOOR = 1e-5


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """Mean and spread of the features of K classes.

    The tensors hold exactly what is saved, so that saving and loading changes nothing.

    Attributes:
        mean: Class means, [K, D], float32.
        counts: Samples behind each class, [K], int64; a class of 0 is empty and is never sampled.
        std: Standard deviations, float32: [K, D], or [D] if all classes share them.
        correlation: Correlations within classes, float16: [K, D, D], or [D, D] if all classes share them; None if only
            variances are kept.
    """

    mean: Tensor
    counts: Tensor
    std: Tensor
    correlation: Tensor | None = None
    _present: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # At once: a training step that is compiled or recorded cannot look for classes that are not empty.
        object.__setattr__(self, "_present", torch.nonzero(self.counts > 0).flatten())

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def kind(self) -> StatisticsKind:
        """What is known of the spread: "full", "pooled", "diagonal" or "shared"."""
        if self.correlation is not None:
            return "full" if self.correlation.ndim == 3 else "pooled"
        return "shared" if self.std.ndim == 1 else "diagonal"

    @property
    def by_class(self) -> list[str]:
        """Names of the tensors that have a row for each class."""
        common = {"shared": ["std"], "pooled": ["correlation"]}.get(self.kind, [])
        return [name for name in self.tensors() if name not in common]

    @property
    def present(self) -> int:
        """The number of classes that are not empty."""
        return len(self._present)

    def covariance(self, index: int) -> Tensor:
        """Return the covariance of one class, [D, D], float64."""
        std = self.std.expand_as(self.mean)[index].double()
        if self.correlation is None:
            return torch.diag(std.square())
        return std[:, None] * self._correlation_of(index).double() * std

    def sample(self, per_class: int, generator: torch.Generator, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Draw features from a Gaussian per class, class after class, leaving empty classes out.

        Args:
            per_class: Samples of each class, n.
            generator: Source of randomness, on any device.
            scale: Factor on the standard deviations.

        Returns:
            Features, [K'·n, D], float32, and their classes, [K'·n], of the K' classes that are not empty.
        """
        shape = (self.present, per_class, self.mean.shape[1])
        noise = torch.randn(shape, generator=generator, device=generator.device)
        return self.features_at(noise.to(self.mean), scale)

    def prepare_sampling(self) -> None:
        """Compute now, once for all, what every sampling needs."""
        if self.present and self.correlation is not None:
            _ = self._roots

    def features_at(self, noise: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Turn standard normal noise into features of the classes, leaving empty classes out.

        After `prepare_sampling`, or the first call, nothing waits for the device.

        Args:
            noise: Independent numbers of mean 0 and variance 1, n of each of the K' classes that are not empty,
                [K', n, D].
            scale: Factor on the standard deviations.

        Returns:
            Features, class after class, [K'·n, D], in the wider type of the noise and float32, and their classes,
            [K'·n].

        Raises:
            ValueError: If the noise has another shape.
        """
        if noise.ndim != 3 or noise.shape[::2] != (self.present, self.mean.shape[1]):
            raise ValueError(f"noise must be [{self.present}, n, {self.mean.shape[1]}]; got {tuple(noise.shape)}")
        noise = noise.to(torch.promote_types(noise.dtype, self.mean.dtype))
        if self.correlation is not None:
            noise = noise @ self._roots.to(noise.dtype)
        std = self.std.expand_as(self.mean)[self._present, None].to(noise.dtype)
        features = self.mean[self._present, None] + scale * std * noise
        return features.flatten(0, 1), self._present[:, None].expand(noise.shape[:2]).flatten()

    def mapped(self, matrix: Tensor, offset: Tensor, residual: Tensor | None = None) -> "ClassStatistics":
        """Carry the statistics through the affine map x -> A·x + b, with independent noise of covariance R.

        The mean becomes A·μ + b and the covariance A·Σ·Aᵀ + R. The kind stays, so of a "diagonal" or "shared"
        spread only the diagonal of A·Σ·Aᵀ + R is kept, and "pooled" correlations become those of a class with the mean
        variances.

        Args:
            matrix: A, [D', D].
            offset: b, [D'].
            residual: R, [D', D']; None adds nothing.

        Returns:
            Statistics in D' dimensions; empty classes stay empty, with mean 0.
        """
        linear = matrix.to(self.mean.device, torch.float64)
        mean = self.mean.double() @ linear.T + offset.to(linear)
        mean[self.counts == 0] = 0
        size = len(linear)
        noise = linear.new_zeros(size, size) if residual is None else residual.to(linear)
        if self.correlation is None:
            std = (self.std.double().square() @ linear.square().T + noise.diagonal()).sqrt()
            return ClassStatistics(mean.float(), self.counts, std.float())
        if self.kind == "pooled":
            return self._mapped_together(linear, mean, noise)
        pairs = [_split(linear @ self.covariance(index) @ linear.T + noise) for index in range(len(self))]
        std, correlation = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        return ClassStatistics(mean.float(), self.counts, std, correlation)

    def _mapped_together(self, linear: Tensor, mean: Tensor, noise: Tensor) -> "ClassStatistics":
        """Map the variances of each class exactly, and pooled correlations as those of a typical class."""
        assert self.correlation is not None
        std = linear.new_zeros(len(self), len(linear))
        for index in self._present.tolist():
            variance = (linear @ self.covariance(index) * linear).sum(dim=1) + noise.diagonal()
            std[index] = variance.clamp_min(0).sqrt()
        typical = linear * self.std[self._present].double().square().mean(dim=0).sqrt()
        _, correlation = _split(typical @ self.correlation.double() @ typical.T + noise)
        return ClassStatistics(mean.float(), self.counts, std.float(), correlation)

    def joined(self, other: "ClassStatistics") -> "ClassStatistics":
        """Append the classes of other statistics of the same kind.

        Shared standard deviations become the mean over all classes that are not empty, pooled correlations that over
        all images.

        Raises:
            ValueError: If kind or dimension differ.
        """
        if self.kind != other.kind or self.mean.shape[1] != other.mean.shape[1]:
            raise ValueError(
                f"statistics to join must agree; got {self.kind} in {self.mean.shape[1]} dimensions "
                f"and {other.kind} in {other.mean.shape[1]}"
            )
        mean = torch.cat([self.mean, other.mean])
        counts = torch.cat([self.counts, other.counts])
        if self.kind == "shared":
            mine, theirs = len(self._present), len(other._present)
            total = max(mine + theirs, 1)
            return ClassStatistics(mean, counts, (mine * self.std + theirs * other.std) / total)
        std = torch.cat([self.std, other.std])
        if self.correlation is None or other.correlation is None:
            return ClassStatistics(mean, counts, std)
        if self.kind == "pooled":
            images = max(_degrees(counts), 1)
            _, correlation = _split((self._scatter + other._scatter) / images)
            return ClassStatistics(mean, counts, std, correlation)
        return ClassStatistics(mean, counts, std, torch.cat([self.correlation, other.correlation]))

    def to(self, device: torch.device | str) -> "ClassStatistics":
        """Return the same statistics on a device."""
        return ClassStatistics.from_tensors({name: t.to(device) for name, t in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as named contiguous tensors, ready for safetensors."""
        named = {"mean": self.mean, "counts": self.counts, "std": self.std}
        if self.correlation is not None:
            named["correlation"] = self.correlation
        return {name: tensor.contiguous() for name, tensor in named.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "ClassStatistics":
        """Rebuild statistics from what `tensors` returned.

        Raises:
            InlayError: If a tensor is missing.
        """
        missing = [name for name in ("mean", "counts", "std") if name not in tensors]
        if missing:
            raise InlayError(
                f"The saved class statistics lack {', '.join(missing)}; give a file that inlay has written."
            )
        return cls(tensors["mean"], tensors["counts"], tensors["std"], tensors.get("correlation"))

    def bytes_per_class(self) -> int:
        """Return the stored bytes divided by the number of classes, rounded up."""
        total = sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())
        return -(-total // max(len(self), 1))

    @cached_property
    def _roots(self) -> Tensor:
        """Square roots of the correlations of the classes that are not empty, or of the pooled ones, float32."""
        assert self.correlation is not None
        if self.kind == "pooled":
            return _symmetric_root(self.correlation)
        roots = [_symmetric_root(self.correlation[index]) for index in self._present.tolist()]
        return torch.stack(roots) if roots else self.correlation[:0].float()

    @property
    def _scatter(self) -> Tensor:
        """Sum over all images of the products of what they differ by from their class, from pooled correlations."""
        assert self.correlation is not None
        weights = (self.counts - 1).clamp_min(0).double()
        std = (weights @ self.std.double().square()).sqrt()
        return std[:, None] * self.correlation.double() * std

    def _correlation_of(self, index: int) -> Tensor:
        assert self.correlation is not None
        return self.correlation if self.kind == "pooled" else self.correlation[index]


@torch.no_grad()
def class_statistics(
    features: Tensor,
    labels: Tensor,
    classes: int,
    kind: StatisticsKind = "full",
    allow_empty: bool = False,
) -> ClassStatistics:
    """Measure mean and spread of the features of each class.

    Variances are unbiased and raised by 1e-5. A class with one member takes the mean std, and for "full" the
    mean correlation, of the classes with more. Where features are many and images few, "pooled" correlations, of all
    classes together, are better known and take less room than those of each.

    Args:
        features: Features, [N, D].
        labels: Their classes, [N], in 0..classes-1.
        classes: Number of classes.
        kind: "full" keeps each class's covariance, "pooled" each class's variances and correlations for all classes
            together, "diagonal" each class's variances, "shared" one standard deviation per dimension, the mean over
            classes.
        allow_empty: Accept classes without members; they get count 0 and mean 0.

    Returns:
        The statistics, on the device of the features.

    Raises:
        ValueError: If a class is empty and that is not allowed, no class has two members, a label is out of
            range, a feature is not finite, or the shapes or the kind are wrong.
    """
    if kind not in get_args(StatisticsKind):
        raise ValueError(f"kind must be one of {', '.join(get_args(StatisticsKind))}; got {kind!r}")
    counts = _counts(features, labels, classes, allow_empty)
    mean = features.new_zeros(classes, features.shape[1], dtype=torch.float64)
    std = torch.zeros_like(mean)
    for index in torch.nonzero(counts).flatten().tolist():
        members = features[labels == index].double()
        mean[index] = members.mean(dim=0)
        if len(members) > 1:
            std[index] = (members.var(dim=0) + _VARIANCE_FLOOR).sqrt()
    typical = std[counts > 1].mean(dim=0)
    if kind == "shared":
        return ClassStatistics(mean.float(), counts, typical.float())
    std[counts == 1] = typical
    measure = {"full": _correlations, "pooled": _pooled_correlations}.get(kind)
    correlation = None if measure is None else measure(features, labels, counts, std)
    return ClassStatistics(mean.float(), counts, std.float(), correlation)


def _counts(features: Tensor, labels: Tensor, classes: int, allow_empty: bool) -> Tensor:
    """Count the members of each class, [K], after checking that statistics of them exist."""
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(f"expected features [N, D] and labels [N]; got {tuple(features.shape)}, {tuple(labels.shape)}")
    if not torch.isfinite(features).all():
        raise ValueError("features must be finite")
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        raise ValueError(f"labels must lie in 0..{classes - 1}; got {int(labels.min())}..{int(labels.max())}")
    counts = torch.bincount(labels, minlength=classes)
    empty = torch.nonzero(counts == 0).flatten().tolist()
    if empty and not allow_empty:
        raise ValueError(f"classes without members: {', '.join(map(str, empty))}")
    if not (counts > 1).any():
        raise ValueError("at least one class needs two members to measure a spread")
    return counts


def _correlations(features: Tensor, labels: Tensor, counts: Tensor, std: Tensor) -> Tensor:
    """Correlate the features of each class, [K, D, D]; the given std already includes the variance floor."""
    dimension = features.shape[1]
    correlation = torch.zeros(len(counts), dimension, dimension, dtype=torch.float16, device=features.device)
    total = features.new_zeros(dimension, dimension, dtype=torch.float64)
    measured = torch.nonzero(counts > 1).flatten().tolist()
    for index in measured:
        centred = features[labels == index].double()
        centred = centred - centred.mean(dim=0)
        covariance = centred.T @ centred / (len(centred) - 1)
        exact = covariance / (std[index][:, None] * std[index])
        exact.fill_diagonal_(1.0)
        total += exact
        correlation[index] = exact.half()
    correlation[counts == 1] = (total / len(measured)).half()
    return correlation


def _pooled_correlations(features: Tensor, labels: Tensor, counts: Tensor, std: Tensor) -> Tensor:
    """Correlate the features of all images, each about the mean of its class, [D, D].

    In units of the std of its class it would weigh most where a feature is all but silent.
    """
    total = features.new_zeros(features.shape[1], features.shape[1], dtype=torch.float64)
    for index in torch.nonzero(counts > 1).flatten().tolist():
        members = features[labels == index].double()
        centred = members - members.mean(dim=0)
        total += centred.T @ centred
    # The floor that variances have been raised by.
    return _split(total / _degrees(counts) + _VARIANCE_FLOOR * torch.eye(len(total)).to(total))[1]


def _degrees(counts: Tensor) -> int:
    """Images beyond the first of each class: what a pooled spread is measured by."""
    return int((counts - 1).clamp_min(0).sum())


def _split(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Split a covariance into std, [D], float32, and correlation, [D, D], float16."""
    std = covariance.diagonal().clamp_min(0).sqrt()
    divisor = torch.where(std > 0, std, 1.0)
    return std.float(), (covariance / (divisor[:, None] * divisor)).half()


def _symmetric_root(correlation: Tensor) -> Tensor:
    """Return the symmetric square root, float32, of the nearest matrix without negative eigenvalues.

    The symmetric root is unique, whereas eigenvectors come with arbitrary signs.
    """
    values, vectors = torch.linalg.eigh(correlation.double())
    root: Tensor = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    return root.float()
