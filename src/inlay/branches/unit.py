"""The hybrid unit: a frozen folded convolution beside a trainable branch of the same shape."""

import torch
from torch import Tensor, nn

from inlay.backbones.initialisation import kaiming_normal_
from inlay.branches.folded import FoldedConv, conv_arguments, fused_kernel
from inlay.branches.gates import Gate

__all__ = ["HybridConv"]


class HybridConv(nn.Module):
    """A frozen base convolution plus a gated novel convolution with its own batch norm (Eqs. 7, 9 and 10).

    Scale and shift of the novel batch norm start at zero, so the unit starts exactly at the base function.

    Args:
        base: Folded convolution, kept as it is.
        gate: How the two outputs are combined.
        generator: Source of the novel kernel; None draws from torch's default CPU generator.
    """

    def __init__(self, base: FoldedConv, gate: Gate, generator: torch.Generator | None = None) -> None:
        super().__init__()
        weight = base.weight
        self.base = base
        self.gate = gate
        self.novel = nn.Conv2d(**conv_arguments(base), bias=False, device="meta")
        # empty_like takes over the memory format, dtype and device of the base.
        self.novel.weight = nn.Parameter(kaiming_normal_(torch.empty_like(weight.detach()), generator))
        self.norm = nn.BatchNorm2d(base.out_channels, device=weight.device, dtype=weight.dtype)
        nn.init.zeros_(self.norm.weight)
        nn.init.zeros_(self.norm.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Map [N, C_in, H, W] to [N, C_out, H', W']."""
        return self.gate.fuse(self.base(images), self.norm(self.novel(images)), self.base.gamma)

    def novel_kernel(self) -> tuple[Tensor, Tensor]:
        """Fuse the novel convolution with its batch norm's running statistics (Algorithm 1, line 8).

        Returns:
            W'_n [C_out, C_in / groups, kH, kW] and B'_n [C_out], both in float64.
        """
        return fused_kernel(self.novel, self.norm)

    def merged(self) -> FoldedConv:
        """Return one convolution that equals this unit in eval mode.

        W = W_b + g ⊗ W'_n and B = B_b + g ⊗ B'_n (Eq. 11); γ' = γ + g ⊗ γ_n with the gate of the old γ
        (Eq. 12). The sums are taken in float64 and stored in the dtype of the base.

        Raises:
            InlayError: If the gate is not mergeable.
        """
        weight, bias = self.novel_kernel()
        with torch.no_grad():
            gamma = self.base.gamma.double()
            scale = self.gate.scale(gamma)
            return FoldedConv(
                self.base,
                weight=self.base.weight.double() + scale.view(-1, 1, 1, 1) * weight,
                bias=self.base.bias.double() + scale * bias,
                gamma=gamma + scale * self.norm.weight.double(),
            )
