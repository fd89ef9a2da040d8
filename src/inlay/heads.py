"""Heads on top of the features: linear, cosine prototypes, projection."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["CosineHead", "grow", "linear", "projector"]


class CosineHead(nn.Module):
    """Scores features by their cosine similarity to one prototype per class.

    Args:
        prototypes: Starting prototypes, [K, D]; only their directions matter.
    """

    def __init__(self, prototypes: Tensor) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(functional.normalize(prototypes.detach().clone(), dim=1))

    def forward(self, features: Tensor) -> Tensor:
        """Return similarities in -1..1, [B, K], for features [B, D]."""
        return functional.normalize(features, dim=1) @ functional.normalize(self.prototypes, dim=1).T


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Return a linear layer with PyTorch's default distribution, drawn from a generator."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device=generator.device)
    bound = 1 / math.sqrt(inputs)
    with torch.no_grad():
        for parameter in (layer.weight, layer.bias):
            drawn = torch.rand(parameter.shape, generator=generator, device=generator.device)
            parameter.copy_((2 * drawn - 1) * bound)
    return layer


def projector(inputs: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    """Return the two-layer projection head g of the contrastive loss."""
    return nn.Sequential(linear(inputs, inputs, generator), nn.ReLU(), linear(inputs, outputs, generator))


def grow(head: nn.Linear, classes: int, generator: torch.Generator) -> nn.Linear:
    """Return a copy of a joint head with more outputs.

    Old rows are kept. New rows are random and each new bias is the smallest old one minus 1, so that new
    outputs do not win before they are trained.

    Args:
        head: Joint head over the old classes.
        classes: Number of outputs to add.
        generator: Source of the new rows.
    """
    old = head.out_features
    wider = linear(head.in_features, old + classes, generator).to(head.weight)
    with torch.no_grad():
        wider.weight[:old] = head.weight
        wider.bias[:old] = head.bias
        wider.bias[old:] = head.bias.min() - 1
    return wider
