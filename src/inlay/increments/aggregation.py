"""Adaptive aggregation: a stable and a plastic copy of a block run side by side and are mixed by one number."""

import copy

import torch
from torch import Tensor, nn

from inlay.branches.layers import applied_with

__all__ = ["AggregatedBlock", "ScaledConv2d", "aggregated", "mixing_shares"]


class ScaledConv2d(nn.Module):
    """A frozen convolution whose kernels are scaled by one learned number per pair of channels.

    Args:
        conv: The convolution, copied and frozen.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = copy.deepcopy(conv).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones_like(conv.weight[:, :, :1, :1]))

    def forward(self, images: Tensor) -> Tensor:
        """Map [N, C_in, H, W] to [N, C_out, H', W'] as the convolution does, with scaled kernels."""
        return applied_with(self.conv, images, self.conv.weight * self.scale, self.conv.bias)


class AggregatedBlock(nn.Module):
    """Mixes the outputs of a stable and a plastic block: a·stable(x) + (1 - a)·plastic(x) (AANets, CVPR 2021).

    The published network mixes its last stage after average pooling; pooling is linear, so mixing before it gives
    the same features.

    Args:
        stable: The slow block, [N, C, H, W] to some shape.
        plastic: The free block, to the same shape.
    """

    def __init__(self, stable: nn.Module, plastic: nn.Module) -> None:
        super().__init__()
        self.stable = stable
        self.plastic = plastic
        example = next(plastic.parameters())
        self.share = nn.Parameter(torch.full((), 0.5, dtype=example.dtype, device=example.device))

    def forward(self, images: Tensor) -> Tensor:
        """Return the mixed outputs of both blocks."""
        mixed: Tensor = self.share * self.stable(images) + (1 - self.share) * self.plastic(images)
        return mixed


def aggregated(block: nn.Module) -> AggregatedBlock:
    """Make a trained block into a pair that gives the same outputs at first.

    The stable copy keeps its kernels and learns their scales, its batch norms and its other parameters; the plastic
    copy is trained whole.

    Args:
        block: A trained stage of a network; the first one with the stem, as they are doubled together. It is not
            changed.
    """
    stable = _with_scaled_convs(copy.deepcopy(block).requires_grad_(True))
    return AggregatedBlock(stable, copy.deepcopy(block).requires_grad_(True))


def mixing_shares(network: nn.Module) -> list[nn.Parameter]:
    """Return the numbers a that mix the blocks of a network, which are trained apart from everything else."""
    return [module.share for module in network.modules() if isinstance(module, AggregatedBlock)]


def _with_scaled_convs(module: nn.Module) -> nn.Module:
    """Replace every 2-d convolution in place; return the module, or what replaces it."""
    if isinstance(module, nn.Conv2d):
        return ScaledConv2d(module)
    for name, child in module.named_children():
        setattr(module, name, _with_scaled_convs(child))
    return module
