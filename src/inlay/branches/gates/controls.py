"""Controls of adaptive model merging: gates that keep its strength but not what gamma says of single channels."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from inlay.branches.gates.gate import Gate, register

__all__ = ["MeanAMM", "ShuffledAMM"]


@register
@dataclass(frozen=True)
class MeanAMM(Gate):
    """The mean of σ(−γ) over the channels of a layer, for each of them."""

    name: ClassVar[str] = "amm-mean"

    def scale(self, gamma: Tensor) -> Tensor:
        """Return the mean of σ(−γ) repeated, [C]."""
        return torch.sigmoid(-gamma).mean().expand_as(gamma)


@register
@dataclass(frozen=True)
class ShuffledAMM(Gate):
    """The values σ(−γ) of a layer, dealt to its channels in another order, always the same."""

    name: ClassVar[str] = "amm-shuffled"

    def scale(self, gamma: Tensor) -> Tensor:
        """Return σ(−γ) of other channels, [C]."""
        channels = len(gamma)
        # A step that shares no factor with the number of channels visits each of them once. Arithmetic on the device,
        # as a recorded step may copy nothing from the host.
        stride = next(n for n in range(max(1, round(0.618 * channels)), 0, -1) if math.gcd(n, channels) == 1)
        order = (torch.arange(channels, device=gamma.device) * stride + channels // 2) % channels
        return torch.sigmoid(-gamma)[order]
