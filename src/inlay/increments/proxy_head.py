"""Cosine heads that grow by labelled classes: several proxies per class, or one weight, with a learned scale."""

import math
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.discovery.kmeans import kmeans

__all__ = [
    "NcaForm",
    "ProxyHead",
    "ScaledCosineHead",
    "nca_loss",
    "proxies_from_features",
    "proxy_similarity",
    "random_proxies",
]

NcaForm = Literal["released", "published"]


def proxy_similarity(features: Tensor, proxies: Tensor, sharpness: float = 1.0) -> Tensor:
    """Compare features with several proxies per class: the local similarity classifier (PODNet, ECCV 2020).

    With s_p = 2·cos - 2, minus the squared distance of the unit vectors, a class scores Σ_p softmax_p(γ·s_p)·s_p.

    Args:
        features: Features, [B, D].
        proxies: P proxies of each class, [C, P, D]; only their directions matter.
        sharpness: γ; large values let the nearest proxy decide.

    Returns:
        Similarities in -4..0, [B, C].
    """
    cosines = F.normalize(features, dim=1) @ F.normalize(proxies, dim=2).flatten(0, 1).T
    nearness = 2 * cosines.view(-1, *proxies.shape[:2]) - 2
    return ((sharpness * nearness).softmax(dim=2) * nearness).sum(dim=2)


def nca_loss(scores: Tensor, labels: Tensor, form: NcaForm = "released", margin: Tensor | float = 0.0) -> Tensor:
    """Compare the score of the right class with those of all others, but not with itself.

    -s_y + log Σ_{j≠y} exp(s_j), averaged over the images.

    Args:
        scores: Scores of the classes, already multiplied by the learned scale, [B, C], C at least 2.
        labels: Classes of the images, [B].
        form: "released" is what PODNet's code computes: it takes the margin off every score, where it cancels, and
            has the largest score in the place of s_y in the sum. "published" leaves s_y out of the sum, takes the
            margin off s_y alone and cuts the loss of an image off at 0, which the released code does not do by default.
        margin: Margin of the form "published" in units of the scores: the published 0.6 times the learned scale.

    Returns:
        The scalar loss, in at least float32.

    Raises:
        ValueError: If there are fewer than two classes or the form is unknown.
    """
    if scores.ndim != 2 or scores.shape[1] < 2 or labels.shape != scores.shape[:1]:
        raise ValueError(
            f"scores must be [B, C] of two classes or more and labels [B]; "
            f"got {tuple(scores.shape)} and {tuple(labels.shape)}"
        )
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    index = labels[:, None]
    right = scores.gather(1, index)
    if form == "released":
        others = scores.scatter(1, index, scores.max(dim=1, keepdim=True).values)
        return (others.logsumexp(dim=1, keepdim=True) - right).mean()
    if form == "published":
        others = scores.scatter(1, index, -math.inf)
        return (others.logsumexp(dim=1, keepdim=True) - right + margin).relu().mean()
    raise ValueError(f"form must be 'released' or 'published'; got {form!r}")


class _GrowingHead(nn.Module):
    """Weights of old and of novel classes as two parameters, so that the old ones can be frozen, and a scale.

    Args:
        novel: Starting weights of the novel classes, [K, ...].
        old: Weights of the old classes, [O, ...], of the same form; None if there are none.
        scale: Starting factor η of the similarities.

    Raises:
        ValueError: If the weights do not fit.
    """

    dimensions = 2

    def __init__(self, novel: Tensor, old: Tensor | None = None, scale: float = 1.0) -> None:
        super().__init__()
        old = novel[:0] if old is None else old
        if novel.ndim != self.dimensions or old.shape[1:] != novel.shape[1:]:
            raise ValueError(
                f"weights must have {self.dimensions} dimensions and the same form; "
                f"got {tuple(novel.shape)} for novel and {tuple(old.shape)} for old classes"
            )
        self.old = nn.Parameter(old.detach().to(novel, copy=True))
        self.novel = nn.Parameter(novel.detach().clone())
        self.scale = nn.Parameter(torch.full((), scale, dtype=novel.dtype, device=novel.device))

    @property
    def weights(self) -> Tensor:
        """Weights of all classes, old ones first."""
        return torch.cat([self.old, self.novel])

    @property
    def in_features(self) -> int:
        """Size D of the features."""
        return self.novel.shape[-1]

    @property
    def out_features(self) -> int:
        """Number of all classes."""
        return len(self.old) + len(self.novel)

    def mean_length(self) -> Tensor:
        """Return the mean length of the weight vectors of all classes, which those of new classes take over."""
        lengths: Tensor = torch.linalg.vector_norm(self.weights.detach(), dim=-1)
        return lengths.mean()

    def grown(self, novel: Tensor) -> Self:
        """Return a head with more classes: all present ones are old, and frozen, and the scale goes on.

        Args:
            novel: Starting weights of the new classes, of the form of the present ones.
        """
        wider = type(self)(novel.to(self.novel), self.weights)
        wider.old.requires_grad_(False)
        with torch.no_grad():
            wider.scale.copy_(self.scale)
        return wider


class ProxyHead(_GrowingHead):
    """Scores features by the scaled `proxy_similarity` to P proxies per class.

    Args:
        novel: Starting proxies of the novel classes, [K, P, D].
        old: Proxies of the old classes, [O, P, D]; None if there are none.
        scale: Starting factor η of the similarities; it is learned.

    Raises:
        ValueError: If the proxies do not fit.
    """

    dimensions = 3

    def forward(self, features: Tensor) -> Tensor:
        """Return scores, old classes first, [B, O + K], for features [B, D]."""
        return self.scale * proxy_similarity(features, self.weights)


class ScaledCosineHead(_GrowingHead):
    """Scores features by their scaled cosine similarity to one weight per class (LUCIR, CVPR 2019).

    Imprinted weights of new classes are their `class_means` under the old network times `mean_length`.

    Args:
        novel: Starting weights of the novel classes, [K, D].
        old: Weights of the old classes, [O, D]; None if there are none.
        scale: Starting factor η of the similarities; it is learned.

    Raises:
        ValueError: If the weights do not fit.
    """

    def forward(self, features: Tensor) -> Tensor:
        """Return scores, old classes first, [B, O + K], for features [B, D]."""
        return self.scale * (F.normalize(features, dim=1) @ F.normalize(self.weights, dim=1).T)


def random_proxies(classes: int, per_class: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw proxies for a base stage: normal of variance 1 / D, [classes, per_class, D].

    Args:
        classes: Number of classes.
        per_class: Number P of proxies per class.
        size: Size D of the features.
        generator: Source of randomness.
    """
    return torch.randn(classes, per_class, size, generator=generator, device=generator.device) / math.sqrt(size)


@torch.no_grad()
def proxies_from_features(
    features: Tensor, labels: Tensor, classes: int, per_class: int, length: Tensor | float, generator: torch.Generator
) -> Tensor:
    """Make proxies of new classes: the k-means centres of each class's unit features, times a length.

    A class with fewer images than proxies has its images as centres, some of them more than once; equal proxies act
    as one.

    Args:
        features: Features of the new classes under the old network, [N, D].
        labels: Their classes, counted from 0 among the new ones, [N].
        classes: Number K of new classes, each with at least one image.
        per_class: Number P of proxies per class.
        length: Factor of the centres, the mean length of the existing proxies.
        generator: Source of the seeds of k-means.

    Returns:
        Proxies, [K, P, D], in at least float32.

    Raises:
        ValueError: If a class has no image.
    """
    units = F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)))
    proxies = []
    for index in range(classes):
        members = units[labels == index]
        if not len(members):
            raise ValueError(f"class {index} has no image")
        centres = kmeans(members, min(per_class, len(members)), generator).centroids
        proxies.append(centres[torch.arange(per_class, device=centres.device) % len(centres)])
    return torch.stack(proxies) * length
