"""A convolution that has absorbed the batch norm behind it."""

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["FoldedConv", "conv_arguments", "fused_kernel", "stored_like"]


class FoldedConv(nn.Conv2d):
    """A frozen convolution with bias that stands for a convolution and its batch norm.

    The scale of the absorbed batch norm lives on in the buffer `gamma` [C_out], which gates a later branch.

    Args:
        like: Convolution whose geometry, dtype, device and memory format are taken over.
        weight: Fused kernel, [C_out, C_in / groups, kH, kW].
        bias: Fused bias, [C_out].
        gamma: Scale of the absorbed batch norm, [C_out].
    """

    gamma: Tensor
    bias: nn.Parameter

    def __init__(self, like: nn.Conv2d, weight: Tensor, bias: Tensor, gamma: Tensor) -> None:
        # The meta device keeps torch's default initialisation from drawing random numbers.
        super().__init__(**conv_arguments(like), bias=True, device="meta")
        channels = like.weight[:, 0, 0, 0]
        self.weight = nn.Parameter(stored_like(weight, like.weight), requires_grad=False)
        self.bias = nn.Parameter(stored_like(bias, channels), requires_grad=False)
        self.register_buffer("gamma", stored_like(gamma, channels))


def conv_arguments(conv: nn.Conv2d) -> dict[str, Any]:
    """Return the constructor arguments that give a convolution of the same geometry."""
    return {
        "in_channels": conv.in_channels,
        "out_channels": conv.out_channels,
        "kernel_size": conv.kernel_size,
        "stride": conv.stride,
        "padding": conv.padding,
        "dilation": conv.dilation,
        "groups": conv.groups,
        "padding_mode": conv.padding_mode,
    }


def fused_kernel(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Fuse a convolution with its batch norm, using the running statistics.

    W' = W γ / sqrt(var + ε) and B' = β + (b − μ) γ / sqrt(var + ε), per output channel.

    Args:
        conv: Convolution with or without bias.
        norm: Batch norm with affine parameters and running statistics.

    Returns:
        W' [C_out, C_in / groups, kH, kW] and B' [C_out], both in float64.

    Raises:
        ValueError: If the batch norm has no running statistics.
    """
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError("the batch norm has no running statistics to fuse")
    with torch.no_grad():
        factor = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
        shift = -norm.running_mean.double()
        if conv.bias is not None:
            shift = shift + conv.bias.double()
        return conv.weight.double() * factor.view(-1, 1, 1, 1), norm.bias.double() + shift * factor


def stored_like(values: Tensor, reference: Tensor) -> Tensor:
    """Return a detached copy of the values in the reference's dtype, device and memory format."""
    if values.shape != reference.shape:
        raise ValueError(f"expected shape {list(reference.shape)}, got {list(values.shape)}")
    return torch.empty_like(reference, requires_grad=False).copy_(values.detach())
