"""Layers that have absorbed the batch norm behind them."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from inlay.branches.layers import Layer, channel_view, stored_like

__all__ = ["Folded", "FoldedNorm", "fold_layer", "folded_norm", "fused_kernel", "has_activation"]


class FoldedNorm(nn.Identity):
    """Stands where a batch norm was, and remembers what a batch norm of that kind stores.

    Attributes:
        channels: Number of channels.
        eps: Epsilon of the batch norm.
        affine: Whether it had a scale.
        shift: Whether it had a shift.
        batches: What it had counted of batches; None if it did not count.
    """

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.channels = norm.num_features
        self.eps = norm.eps
        self.affine = norm.weight is not None
        self.shift = norm.bias is not None
        self.batches = None if norm.num_batches_tracked is None else int(norm.num_batches_tracked)


class FoldedNormAct(FoldedNorm):
    """Stands where a batch norm with activation was; dropout and activation live on under their names."""

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__(norm)
        for name, child in norm.named_children():
            self.add_module(name, child)

    def forward(self, input: Tensor) -> Tensor:
        """Apply what is left."""
        for child in self.children():
            input = child(input)
        return input


class Folded(nn.Module):
    """A frozen layer with bias that stands for a layer and its batch norm.

    Attributes:
        gamma: Scale of the absorbed batch norm [C_out], moved on by each merge (Eq. 12); it gates the next branch.
        had_bias: Whether the layer had a bias before it absorbed the batch norm.
    """

    gamma: Tensor
    had_bias: bool
    _absorbed: tuple[FoldedNorm]

    @property
    def absorbed(self) -> FoldedNorm:
        """What stands in the network where the absorbed batch norm was."""
        # Held in a tuple, as a module held directly would be registered a second time.
        return self._absorbed[0]


class FoldedConv1d(Folded, nn.Conv1d):
    """Conv1d and BatchNorm1d as one."""


class FoldedConv2d(Folded, nn.Conv2d):
    """Conv2d and BatchNorm2d as one."""


class FoldedConv3d(Folded, nn.Conv3d):
    """Conv3d and BatchNorm3d as one."""


class FoldedLinear(Folded, nn.Linear):
    """Linear and BatchNorm1d as one."""


_FOLDED_CLASSES: dict[type[nn.Module], type[Folded]] = {
    nn.Conv1d: FoldedConv1d,
    nn.Conv2d: FoldedConv2d,
    nn.Conv3d: FoldedConv3d,
    nn.Linear: FoldedLinear,
}


def fold_layer(layer: Layer, norm: _BatchNorm, absorbed: FoldedNorm, gamma: Tensor | None = None) -> Folded:
    """Return one frozen layer that stands for a layer and its batch norm.

    Args:
        layer: Convolution or linear layer; it is not changed.
        norm: Its batch norm, with running statistics.
        absorbed: What takes the place of the batch norm in the network.
        gamma: The gamma to keep [C_out]; None takes the scale of the batch norm, or ones if it has none.
    """
    weight, bias = fused_kernel(layer, norm)
    channels = layer.weight.detach().flatten(1)[:, 0]
    if gamma is None:
        gamma = torch.ones_like(channels) if norm.weight is None else norm.weight
    folded = copy.deepcopy(layer)
    plain = next(kind for kind in type(layer).__mro__ if kind in _FOLDED_CLASSES)
    folded.__class__ = _FOLDED_CLASSES[plain]  # type: ignore[assignment]  # a subclass of the plain class
    assert isinstance(folded, Folded)
    folded.weight = nn.Parameter(stored_like(weight, layer.weight), requires_grad=False)
    folded.bias = nn.Parameter(stored_like(bias, channels), requires_grad=False)
    folded.register_buffer("gamma", stored_like(gamma, channels))
    folded.had_bias = layer.bias is not None
    folded._absorbed = (absorbed,)
    return folded


def folded_norm(norm: _BatchNorm) -> FoldedNorm:
    """Return what takes the place of an absorbed batch norm."""
    return FoldedNormAct(norm) if has_activation(norm) else FoldedNorm(norm)


def has_activation(norm: _BatchNorm) -> bool:
    """Say whether a batch norm also holds the dropout and activation behind it, as in timm."""
    names = [name for name, _ in norm.named_children()]
    return any(kind.__name__ == "BatchNormAct2d" for kind in type(norm).__mro__) and names == ["drop", "act"]


def fused_kernel(layer: Layer, norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Fuse a layer with its batch norm, using the running statistics.

    W' = W γ / sqrt(var + ε) and B' = β + (b − μ) γ / sqrt(var + ε), per output channel.

    Args:
        layer: Convolution or linear layer, with or without bias.
        norm: Batch norm with running statistics; where it has no scale γ = 1, where it has no shift β = 0.

    Returns:
        W' [C_out, C_in / groups, ...] and B' [C_out], both in float64.

    Raises:
        ValueError: If the batch norm has no running statistics.
    """
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError("the batch norm has no running statistics to fuse")
    with torch.no_grad():
        factor = torch.rsqrt(norm.running_var.double() + norm.eps)
        bias = -norm.running_mean.double()
        if layer.bias is not None:
            bias = bias + layer.bias.double()
        if norm.weight is not None:
            factor = factor * norm.weight.double()
        bias = bias * factor
        if norm.bias is not None:
            bias = bias + norm.bias.double()
        weight = layer.weight.double()
        return weight * channel_view(factor, weight), bias
