"""Importance of feature maps for the loss, and distillation that protects the important ones."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["channel_importance", "relative_importance", "weighted_discrepancy"]


def channel_importance(loss: Tensor, maps: Sequence[Tensor]) -> list[Tensor]:
    """Measure on one batch how much the loss depends on each channel of some maps.

    I_c is the mean over images of Σ_hw (∂L/∂x_c)², as Kang, Park and Han have it (AFC, CVPR 2022). Summed over
    the batches of one pass over a stage's images and made relative by `relative_importance`, it weighs the next stage.

    Args:
        loss: The scalar classification loss of the batch; its graph is used up.
        maps: Maps from which the loss was computed, one [B, C, H, W] or [B, C] per layer.

    Returns:
        One importance per channel, [C] for each layer, in at least float32.
    """
    gradients = torch.autograd.grad(loss, list(maps))
    return [_mean_square(gradient) for gradient in gradients]


def relative_importance(totals: Tensor) -> Tensor:
    """Divide the importances of one layer by their mean, so that the layer as a whole keeps its weight.

    Args:
        totals: Importances summed over batches, not negative, [C].

    Returns:
        Importances of mean 1, [C]; all 1 if the loss does not depend on the layer at all.
    """
    # By the largest first, as the mean of tiny numbers loses digits.
    largest = totals.amax()
    shares = totals / largest
    return torch.where(largest > 0, shares / shares.mean(), 1.0)


def weighted_discrepancy(current: Sequence[Tensor], frozen: Sequence[Tensor], importance: Sequence[Tensor]) -> Tensor:
    """Hold the squared channels of several layers close to the old ones, the important ones more.

    Each channel is squared and L2-normalised over its pixels; d_c is the Euclidean distance to the old channel,
    and a layer costs the mean of I_c·d_c over images and channels (AFC).

    Args:
        current: Maps of the model in training before the last ReLU of their stage, one [B, C, H, W] per layer.
        frozen: The same maps of the model before the stage; no gradient flows to them.
        importance: I_c of the channels of each layer, one [C] per layer; see `relative_importance`.

    Returns:
        The scalar mean over layers, in at least float32.

    Raises:
        ValueError: If there are no maps, or the three differ in number or shape.
    """
    if not current or not len(current) == len(frozen) == len(importance):
        raise ValueError(
            f"maps of both models and importances must be of the same layers; "
            f"got {len(current)}, {len(frozen)} and {len(importance)}"
        )
    layers = [_layer_discrepancy(*layer) for layer in zip(current, frozen, importance, strict=True)]
    return torch.stack(layers).mean()


def _layer_discrepancy(current: Tensor, frozen: Tensor, importance: Tensor) -> Tensor:
    if current.shape != frozen.shape or current.ndim != 4 or importance.shape != current.shape[1:2]:
        raise ValueError(
            f"a layer needs two maps [B, C, H, W] and importances [C]; "
            f"got {tuple(current.shape)}, {tuple(frozen.shape)} and {tuple(importance.shape)}"
        )
    distances: Tensor = torch.linalg.vector_norm(_unit_channels(current) - _unit_channels(frozen.detach()), dim=2)
    return (importance.detach() * distances).mean()


def _unit_channels(maps: Tensor) -> Tensor:
    """Return each squared channel as a unit vector, [B, C, H·W]."""
    squares = maps.to(torch.promote_types(maps.dtype, torch.float32)).square()
    return F.normalize(squares.flatten(2), dim=2)


def _mean_square(gradient: Tensor) -> Tensor:
    exact = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
    return exact.flatten(2).square().sum(dim=2).mean(dim=0) if exact.ndim > 2 else exact.square().mean(dim=0)
