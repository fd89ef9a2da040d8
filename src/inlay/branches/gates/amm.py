"""Adaptive model merging: the scale of the base's norm gates the branch."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from inlay.branches.gates.gate import Gate, register

__all__ = ["AMM"]


@register
@dataclass(frozen=True)
class AMM(Gate):
    """Adaptive model merging, g = σ(−γ) per channel (Eq. 10).

    Attributes:
        absolute: Whether to use σ(−|γ|), which counts a large negative γ as important too.
    """

    name: ClassVar[str] = "amm"
    absolute: bool = False

    def scale(self, gamma: Tensor) -> Tensor:
        """Return σ(−γ) or σ(−|γ|), [C]."""
        return torch.sigmoid(-gamma.abs() if self.absolute else -gamma)
