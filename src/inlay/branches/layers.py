"""Convolutions and linear layers seen as one thing: a weight, perhaps a bias, and how they are applied."""

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Layer", "Side", "applied_with", "channel_view", "like", "row_norms", "stored_like"]

Layer: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear
Side: TypeAlias = Literal["in", "out"]


def channel_view(values: Tensor, weight: Tensor, side: Side = "out") -> Tensor:
    """View one value per channel so that it multiplies a weight.

    Args:
        values: One value for each output channel [C_out], or each input channel [C_in / groups].
        weight: The weight, [C_out, C_in / groups, ...].
        side: Which channels the values belong to.
    """
    shape = [1] * weight.dim()
    shape[0 if side == "out" else 1] = -1
    return values.view(shape)


def applied_with(layer: Layer, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a layer with another weight and bias of the same shapes."""
    if isinstance(layer, nn.Linear):
        return F.linear(inputs, weight, bias)
    outputs: Tensor = layer._conv_forward(inputs, weight, bias)
    return outputs


def like(layer: Layer, *, pointwise: bool, bias: bool) -> Layer:
    """Return a trainable layer of the same geometry, its values undefined.

    Args:
        layer: The layer whose geometry, dtype, device and memory format are taken over.
        pointwise: Whether the kernel is 1 in every dimension, with the same stride and without padding.
        bias: Whether the new layer has a bias.
    """
    weight = layer.weight.detach()
    twin: Layer
    # The meta device keeps torch's default initialisation from drawing random numbers.
    if isinstance(layer, nn.Linear):
        twin = nn.Linear(layer.in_features, layer.out_features, bias=bias, device="meta")
    else:
        kind = next(kind for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d) if isinstance(layer, kind))
        twin = kind(**_conv_arguments(layer, pointwise), bias=bias, device="meta")
    if pointwise:
        for dimension in range(2, weight.dim()):
            weight = weight.narrow(dimension, 0, 1)
    # empty_like takes over the memory format, dtype and device.
    twin.weight = nn.Parameter(torch.empty_like(weight))
    if bias:
        twin.bias = nn.Parameter(weight.new_empty(weight.shape[0]))
    return twin


def row_norms(weight: Tensor) -> Tensor:
    """Return the norm of each output channel's weights over the mean of these norms, [C_out]; zeros if all are zero."""
    norms = weight.detach().double().flatten(1).norm(dim=1)
    mean = norms.mean()
    relative: Tensor = norms / mean if mean > 0 else norms
    return relative.to(weight.dtype)


def stored_like(values: Tensor, reference: Tensor) -> Tensor:
    """Return a detached copy of the values in the reference's dtype, device and memory format."""
    if values.shape != reference.shape:
        raise ValueError(f"expected shape {list(reference.shape)}, got {list(values.shape)}")
    return torch.empty_like(reference, requires_grad=False).copy_(values.detach())


def _conv_arguments(conv: nn.Conv1d | nn.Conv2d | nn.Conv3d, pointwise: bool) -> dict[str, Any]:
    arguments = {
        "in_channels": conv.in_channels,
        "out_channels": conv.out_channels,
        "kernel_size": conv.kernel_size,
        "stride": conv.stride,
        "padding": conv.padding,
        "dilation": conv.dilation,
        "groups": conv.groups,
        "padding_mode": conv.padding_mode,
    }
    if pointwise:
        arguments |= {"kernel_size": 1, "padding": 0, "dilation": 1, "padding_mode": "zeros"}
    return arguments
