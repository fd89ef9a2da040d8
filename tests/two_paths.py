"""A slow reference for hybrids: base and branch run one after the other, and the gate multiplies features."""

import copy

import torch
from torch import Tensor, nn

from inlay.branches import HybridUnit, hybrid_units


class TwoPaths(HybridUnit):
    """A unit that adds two outputs (Eqs. 7, 9 and 10) and knows nothing of sums of weights."""

    def forward(self, input: Tensor) -> Tensor:
        scale = self.gate.scale(self.gamma)
        base_out: Tensor = self.base(input)
        novel_in = input * scale if self.side == "in" else input
        novel_out: Tensor = self.novel(novel_in)
        if self.norm is not None:
            novel_out = self.norm(novel_out)
        if self.side == "out":
            channels = -1 if isinstance(self.base, nn.Linear) else 1
            slices = [part * factor for part, factor in zip(novel_out.unbind(channels), scale.unbind(), strict=True)]
            novel_out = torch.stack(slices, channels)
        return base_out + novel_out


def with_two_paths(hybrid: nn.Module) -> nn.Module:
    """Copy a hybrid with units that run both paths; its gate must be one that merges."""
    slow = copy.deepcopy(hybrid)
    for unit in hybrid_units(slow).values():
        unit.__class__ = TwoPaths
    return slow
