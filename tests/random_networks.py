"""Networks built from the descriptions in `network_descriptions`."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrizations import weight_norm

from network_descriptions import Activation, Description, LayerBlock, Norm, TokenBlock, TokenNorm

SIZES: dict[int, tuple[int, ...]] = {0: (), 1: (9,), 2: (7, 6), 3: (5, 4, 5)}
BATCH, TOKENS, CLASSES = 4, 3, 3

_CONVOLUTIONS: dict[int, Callable[..., nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: dict[int, Callable[..., nn.Module]] = {
    1: nn.ConvTranspose1d,
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}
_BATCH_NORMS: dict[int, Callable[..., nn.Module]] = {
    0: nn.BatchNorm1d,
    1: nn.BatchNorm1d,
    2: nn.BatchNorm2d,
    3: nn.BatchNorm3d,
}


def build(description: Description, seed: int) -> nn.Module:
    """Build a network in eval mode with lively weights, always the same for a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = DescribedNetwork(description)
        _enliven(network)
    return network.to(description.dtype).eval()


def inputs(description: Description, seed: int) -> Tensor:
    """Draw a batch that the network accepts, always the same for a seed."""
    channels, dimensions = description.channels, description.dimensions
    shape = (TOKENS, channels) if dimensions is None else (channels, *SIZES[dimensions])
    return torch.randn(BATCH, *shape, generator=torch.Generator().manual_seed(seed)).to(description.dtype)


class DescribedNetwork(nn.Module):
    """Blocks one after the other, the mean over all positions, and perhaps a head."""

    def __init__(self, description: Description) -> None:
        super().__init__()
        self.dimensions = description.dimensions
        self.order: list[str] = []
        modules: dict[str, nn.Module] = {}
        shape = (description.channels, *SIZES[description.dimensions or 0])
        norm: nn.Module | None = None
        for index, described in enumerate(description.blocks):
            if isinstance(described, TokenBlock):
                block: nn.Module = Mlp(described, shape[0], norm, description.backwards)
            else:
                block = Layers(described, shape, norm, description.backwards)
                shape = tuple(block(torch.zeros(BATCH, *shape), []).shape[1:])
            norm = block._modules.get("norm")
            self.order.append(f"block{index}")
            modules[f"block{index}"] = block
        if description.head:
            modules["head"] = nn.Linear(shape[0], CLASSES)
        _register(self, modules, description.backwards)

    def forward(self, images: Tensor) -> object:
        """Map [N, C, ...] or [N, T, C] to [N, C_out], beside a list of other outputs if there are some."""
        others: list[Tensor] = []
        out = images
        for name in self.order:
            out = self.get_submodule(name)(out, others)
        positions = [1] if self.dimensions is None else list(range(2, out.dim()))
        out = out.mean(positions) if positions else out
        if "head" in self._modules:
            out = self.get_submodule("head")(out)
        return {"scores": out, "others": others} if others else out


class Layers(nn.Module):
    """What a `LayerBlock` describes, for inputs of shape [N, *shape]."""

    def __init__(
        self, block: LayerBlock, shape: tuple[int, ...], norm_before: nn.Module | None, backwards: bool
    ) -> None:
        super().__init__()
        self.block = block
        modules = {"layer": _layer(block, shape)}
        out = modules["layer"](torch.zeros(BATCH, *shape))
        norm = _norm(block.norm, out, norm_before)
        if norm is not None:
            modules["norm"] = norm
            if block.use == "two norms":
                modules["second_norm"] = _BATCH_NORMS[out.dim() - 2](out.shape[1])
        if block.use == "two layers":
            modules["second"] = _layer(block, shape)
        if block.obstacle == "tied":
            modules["twin"] = _layer(block, shape)
            modules["twin"].weight = modules["layer"].weight
        elif block.obstacle == "parametrized":
            weight_norm(modules["layer"])
        elif block.obstacle == "hooked":
            modules["layer"].register_forward_hook(_doubled)
        _register(self, modules, backwards)

    def forward(self, images: Tensor, others: list[Tensor]) -> Tensor:
        """Map [N, C, ...] to [N, C_out, ...], and perhaps append to the other outputs."""
        out = self._normed_layer(images, others)
        if not self.block.activation_first:
            out = _activated(out, self.block.activation)
        if "twin" in self._modules:
            out = out + self._run("twin", images)
        return images + out if self.block.residual and images.shape == out.shape else out

    def _normed_layer(self, images: Tensor, others: list[Tensor]) -> Tensor:
        use, out = self.block.use, self._layer(images)
        if use == "view":
            return self._run("norm", out[:])
        if use == "returned":
            others.append(out)
        once = self._run("norm", out)
        if use == "raw":
            return once + out
        if use == "chained" and out.shape == images.shape:
            return self._run("norm", self._layer(_activated(once, self.block.activation)))
        if use == "twice":
            return once + self._run("norm", self._layer(images.flip(0)))
        if use == "two norms":
            return once + self._run("second_norm", self._layer(images.flip(0)))
        if use == "one bare":
            return once + self._layer(images.flip(0))
        if use == "two layers":
            return once + self._run("norm", self._run("second", images))
        if use == "norm twice" and images.shape[1] == out.shape[1]:
            return once + self._run("norm", images).mean()
        return once

    def _layer(self, images: Tensor) -> Tensor:
        out = self._run("layer", images)
        return _activated(out, self.block.activation) if self.block.activation_first else out

    def _run(self, name: str, images: Tensor) -> Tensor:
        out: Tensor = self.get_submodule(name)(images) if name in self._modules else images
        return out


class Mlp(nn.Module):
    """What a `TokenBlock` describes, for inputs of shape [N, T, width]."""

    def __init__(self, block: TokenBlock, width: int, norm_before: nn.Module | None, backwards: bool) -> None:
        super().__init__()
        self.block = block
        modules: dict[str, nn.Module] = {"first": nn.Linear(width, block.hidden, bias=block.bias)}
        if block.mlp == "gated":
            modules["gate"] = nn.Linear(width, block.hidden, bias=not block.bias)
        modules["second"] = nn.Linear(block.hidden, width, bias=block.bias)
        modules["norm"] = nn.Identity() if block.mlp == "no norm" else _token_norm(block.norm, width, norm_before)
        _register(self, modules, backwards)

    def forward(self, tokens: Tensor, others: list[Tensor]) -> Tensor:
        """Map [N, T, width] to the same shape."""
        first, second, norm = (self.get_submodule(name) for name in ("first", "second", "norm"))
        normed: Tensor = tokens if self.block.mlp == "post-norm" else norm(tokens)
        hidden = _activated(first(normed), self.block.activation)
        if self.block.mlp == "gated":
            hidden = hidden * self.get_submodule("gate")(normed)
        out: Tensor = second(hidden)
        if self.block.mlp == "norm used twice":
            out = out + normed
        if self.block.residual:
            out = tokens + out
        return norm(out) if self.block.mlp == "post-norm" else out


def _register(parent: nn.Module, modules: dict[str, nn.Module], backwards: bool) -> None:
    for name in reversed(modules) if backwards else modules:
        parent.add_module(name, modules[name])


def _activated(out: Tensor, activation: Activation) -> Tensor:
    if activation == "gelu":
        return F.gelu(out)
    return out if activation == "none" else F.relu(out, inplace=activation == "relu in place")


def _doubled(module: nn.Module, args: object, output: Tensor) -> Tensor:
    return 2 * output


def _layer(block: LayerBlock, shape: tuple[int, ...]) -> nn.Module:
    """Build the layer for inputs [N, *shape], with as much of the geometry as fits."""
    channels, *sizes = shape
    if not sizes:
        return nn.Linear(channels, block.channels, bias=block.bias)
    groups, kernel = math.gcd(block.groups, channels, block.channels), block.kernel[: len(sizes)]
    if block.obstacle == "transposed":
        return _TRANSPOSED[len(sizes)](channels, block.channels, kernel, groups=groups, bias=block.bias)
    padding = block.padding
    if isinstance(padding, int) and block.padding_mode != "zeros":
        padding = min(padding, *(length - 1 for length in sizes))
    return _CONVOLUTIONS[len(sizes)](
        channels,
        block.channels,
        tuple(k if block.dilation * (k - 1) < length else 1 for k, length in zip(kernel, sizes, strict=True)),
        stride=1 if padding == "same" else block.stride,
        padding=padding,
        dilation=block.dilation,
        groups=groups,
        bias=block.bias,
        padding_mode=block.padding_mode,
    )


def _norm(kind: Norm, out: Tensor, before: nn.Module | None) -> nn.Module | None:
    if kind == "none":
        return None
    if kind == "previous" and isinstance(before, _BatchNorm) and before.num_features == out.shape[1]:
        return before
    return _BATCH_NORMS[out.dim() - 2](out.shape[1], affine=kind != "plain", track_running_stats=kind != "batch")


def _token_norm(kind: TokenNorm, width: int, before: nn.Module | None) -> nn.Module:
    if kind == "previous" and before is not None:
        return before
    if kind == "rms":
        return nn.RMSNorm(width)
    return nn.LayerNorm(width, elementwise_affine=kind != "plain", bias=kind != "no bias")


def _enliven(network: nn.Module) -> None:
    """Give norms scales of both signs, shifts, and statistics as if they had seen images."""
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, (_BatchNorm, nn.LayerNorm, nn.RMSNorm)):
                for parameter in module.parameters():
                    parameter.normal_(0.5, 0.7)
            if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None:
                module.running_mean.normal_(0, 0.5)
                module.running_var.uniform_(0.3, 2)
