"""The hybrid unit: a frozen layer beside a trainable branch."""

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inlay.backbones.initialisation import kaiming_normal_
from inlay.branches.folded import Folded, fused_kernel
from inlay.branches.gates import Gate
from inlay.branches.layers import Layer, Side, applied_with, channel_view, like
from inlay.errors import InlayError

__all__ = ["HybridUnit", "branch_of", "branch_parameters", "hybrid_units", "is_hybrid"]

_GEOMETRY = frozenset(
    {"in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"}
    | {"in_features", "out_features"}
)

BatchNorm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d

_NORMS: dict[int, type[nn.BatchNorm1d] | type[nn.BatchNorm2d] | type[nn.BatchNorm3d]] = {
    2: nn.BatchNorm1d,
    3: nn.BatchNorm1d,
    4: nn.BatchNorm2d,
    5: nn.BatchNorm3d,
}


class HybridUnit(nn.Module):
    """A frozen base layer plus a gated novel layer (Eqs. 7, 9 and 10).

    With a batch norm of its own the branch has a random kernel, and scale and shift of the norm start at zero;
    without one the branch itself starts at zero. Either way the unit starts exactly at the base function.

    Args:
        base: Frozen layer, kept as it is.
        gate: How the branch is let through.
        gamma: What the gate depends on: one value per gated channel, kept for the whole stage.
        side: Whether the gate acts on the output channels or on the input channels.
        pointwise: Whether the novel kernel is 1×1 at the centre of the base kernel.
        batch_norm: Whether the branch has a batch norm of its own.
        generator: Source of the novel kernel; None draws from torch's default CPU generator.
    """

    gamma: Tensor
    norm: BatchNorm | None

    def __init__(
        self,
        base: Layer,
        gate: Gate,
        gamma: Tensor,
        *,
        side: Side = "out",
        pointwise: bool = False,
        batch_norm: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.base = base
        self.gate = gate
        self.side: Side = side
        self.pointwise = pointwise
        self.register_buffer("gamma", gamma.detach().clone())
        self.novel = like(base, pointwise=pointwise, bias=base.bias is not None and not isinstance(base, Folded))
        if batch_norm:
            self.norm = _norm_behind(base)
            kernel = kaiming_normal_(self.novel.weight.data, generator)
            # An output channel of a grouped convolution reaches the outputs of its group alone.
            kernel.mul_(getattr(base, "groups", 1) ** 0.5)
        else:
            self.norm = None
            nn.init.zeros_(self.novel.weight)
            if self.novel.bias is not None:
                nn.init.zeros_(self.novel.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Map [N, C_in, ...] to [N, C_out, ...], or [..., C_in] to [..., C_out] where the base is linear."""
        if self.training and self._is_one_map():
            # One pass with the sum costs half of two passes. In eval mode there are two, so that merging is compared
            # with something else than itself.
            return applied_with(self.base, input, self.weight, self.bias)
        base_out: Tensor = self.base(input)
        if not self.gate.mergeable:
            return self.gate.fuse(base_out, self._novel_out(input))
        scale = self.gate.scale(self.gamma).to(base_out.dtype)
        if not isinstance(self.base, nn.Linear):
            scale = scale.view(-1, *[1] * (self.base.weight.dim() - 2))
        if self.side == "in":
            return base_out + self._novel_out(input * scale)
        return torch.addcmul(base_out, scale, self._novel_out(input))

    def _is_one_map(self) -> bool:
        """Say whether base and branch are one linear map whose weights add up without loss."""
        # Half-precision weights would swallow a small branch in the sum. Under autocast the sum is taken in float32.
        precise = torch.finfo(self.base.weight.dtype).bits >= 32
        return self.norm is None and self.gate.mergeable and precise

    def _novel_out(self, input: Tensor) -> Tensor:
        outputs: Tensor = self.novel(input)
        if self.norm is not None:
            outputs = self.norm(outputs)
        return outputs

    def __getattr__(self, name: str) -> Any:
        # Some networks read the geometry of a layer, for example to pad its input.
        return getattr(self.base, name) if name in _GEOMETRY else super().__getattr__(name)

    @property
    def weight(self) -> Tensor:
        """The weight of the one layer that equals this unit in eval mode, [C_out, C_in / groups, ...].

        Where the gate cannot be merged there is no such layer, and this is the weight of the base: networks read the
        dtype of a layer's weight, and no more than that.
        """
        if not self.gate.mergeable:
            return self.base.weight
        return self.base.weight + self._summand("weight", self.base.weight.dtype)

    @property
    def bias(self) -> Tensor | None:
        """The bias of the one layer that equals this unit in eval mode, [C_out]; None if the base has none."""
        if self.base.bias is None or not self._moves_bias() or not self.gate.mergeable:
            return self.base.bias
        return self.base.bias + self._summand("bias", self.base.bias.dtype)

    @torch.no_grad()
    def delta(self) -> dict[str, Tensor]:
        """Return what merging adds to weight, bias and gamma of the base (Eqs. 11 and 12), in float64.

        With g the gate of the old gamma: g ⊗ W'_n, g ⊗ B'_n and g ⊗ γ_n for a branch with a batch norm, which is
        fused first (Algorithm 1, line 8); g ⊗ W_n and g ⊗ b_n without; W_n diag(g) and b_n if the gate acts on the
        input channels.

        Raises:
            InlayError: If the gate is not mergeable.
        """
        parts = {"weight": self._summand("weight", torch.float64)}
        if self._moves_bias():
            parts["bias"] = self._summand("bias", torch.float64)
        if self.norm is not None:
            parts["gamma"] = self.gate.scale(self.gamma.double()) * self.norm.weight.double()
        return parts

    def _moves_bias(self) -> bool:
        return self.norm is not None or self.novel.bias is not None

    def _summand(self, part: Literal["weight", "bias"], dtype: torch.dtype) -> Tensor:
        """Return what the branch adds to the weight or the bias of the base."""
        weight, bias = self.novel.weight, self.novel.bias
        if self.norm is not None:
            weight, bias = fused_kernel(self.novel, self.norm)
        scale = self.gate.scale(self.gamma.to(dtype))
        if part == "weight":
            return self._at_centre(weight.to(dtype) * channel_view(scale, weight, self.side))
        assert bias is not None
        return bias.to(dtype) * scale if self.side == "out" else bias.to(dtype)

    def _at_centre(self, kernel: Tensor) -> Tensor:
        """Pad a pointwise kernel with zeros to the size of the base kernel; others pass."""
        margins = [(size - 1) // 2 for size in reversed(self.base.weight.shape[2:])] if self.pointwise else []
        return F.pad(kernel, [margin for size in margins for margin in (size, size)]) if any(margins) else kernel


def hybrid_units(model: nn.Module) -> dict[str, HybridUnit]:
    """Return the units with a branch by module name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, HybridUnit)}


def is_hybrid(model: nn.Module) -> bool:
    """Say whether any branch is attached to a network."""
    return any(isinstance(module, HybridUnit) for module in model.modules())


def branch_parameters(hybrid: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters of every branch.

    Raises:
        InlayError: If the network has no branch.
    """
    units = hybrid_units(hybrid)
    if not units:
        raise InlayError("The network has no branches; attach them with inlay.branches.attach first.")
    return [parameter for unit in units.values() for part in branch_of(unit) for parameter in part.parameters()]


def branch_of(unit: HybridUnit) -> list[nn.Module]:
    """Return the modules of a branch."""
    return [unit.novel] if unit.norm is None else [unit.novel, unit.norm]


def _norm_behind(base: Layer) -> BatchNorm:
    norm = _NORMS[base.weight.dim()](base.weight.shape[0], device=base.weight.device, dtype=base.weight.dtype)
    nn.init.zeros_(norm.weight)
    nn.init.zeros_(norm.bias)
    return norm
