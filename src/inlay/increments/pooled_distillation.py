"""Pooled outputs distillation: intermediate maps and final features held close to those of the model before."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["flat_distillation", "growth_factor", "pooled_distillation"]


def pooled_distillation(current: Sequence[Tensor], frozen: Sequence[Tensor]) -> Tensor:
    """Hold the squared maps of several layers close to the old ones after pooling away one axis at a time.

    POD-spatial of Douillard et al. (PODNet, ECCV 2020): each map is squared, summed once over its width and once
    over its height; both results together are L2-normalised per image and compared by the Euclidean distance.

    Args:
        current: Maps of the model in training before the last ReLU of their stage, one [B, C, H, W] per layer.
        frozen: The same maps of the model before the stage; no gradient flows to them.

    Returns:
        The scalar mean over images, then over layers, in at least float32.

    Raises:
        ValueError: If there are no maps, or the two models' maps differ in number or shape.
    """
    if not current or len(current) != len(frozen):
        raise ValueError(f"both models need maps of the same layers; got {len(current)} and {len(frozen)} maps")
    layers = [_layer_distance(new, old) for new, old in zip(current, frozen, strict=True)]
    return torch.stack(layers).mean()


def flat_distillation(current: Tensor, frozen: Tensor) -> Tensor:
    """Hold the direction of the final features close to the old one: POD-flat, the mean of 1 - cosine.

    Args:
        current: Features of the model in training, [B, D].
        frozen: Features of the model before the stage for the same images, [B, D]; no gradient flows to them.

    Returns:
        The scalar mean over images, 0 to 2, in at least float32.

    Raises:
        ValueError: If the shapes differ.
    """
    if current.shape != frozen.shape or current.ndim != 2:
        raise ValueError(f"features must both be [B, D]; got {tuple(current.shape)} and {tuple(frozen.shape)}")
    precision = torch.promote_types(current.dtype, torch.float32)
    return (1 - F.cosine_similarity(current.to(precision), frozen.detach().to(precision))).mean()


def growth_factor(seen: int, new: int) -> float:
    """Return √(seen / new), by which distillation weighs more the more there is to lose.

    Args:
        seen: Number of all classes so far, the new ones included.
        new: Number of classes that this stage adds.

    Raises:
        ValueError: If no class is new, or fewer are seen than new.
    """
    if not 1 <= new <= seen:
        raise ValueError(f"new classes must number 1..{seen}, the classes seen; got {new}")
    return math.sqrt(seen / new)


def _layer_distance(current: Tensor, frozen: Tensor) -> Tensor:
    if current.shape != frozen.shape or current.ndim != 4:
        raise ValueError(f"maps must both be [B, C, H, W]; got {tuple(current.shape)} and {tuple(frozen.shape)}")
    # The derivative of vector_norm is 0 where both models agree exactly, as they do at the start.
    distances: Tensor = torch.linalg.vector_norm(_pooled(current) - _pooled(frozen.detach()), dim=1)
    return distances.mean()


def _pooled(maps: Tensor) -> Tensor:
    """Return the unit vectors that stand for squared maps, [B, C·H + C·W]."""
    squares = maps.to(torch.promote_types(maps.dtype, torch.float32)).square()
    return F.normalize(torch.cat([squares.sum(dim=3).flatten(1), squares.sum(dim=2).flatten(1)], dim=1))
