"""Incremental model merging: plain addition."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from inlay.branches.gates.gate import Gate, register

__all__ = ["IMM"]


@register
@dataclass(frozen=True)
class IMM(Gate):
    """Plain addition, g = 1 (Eqs. 7 and 8)."""

    name: ClassVar[str] = "imm"

    def scale(self, gamma: Tensor) -> Tensor:
        """Return ones [C]."""
        return torch.ones_like(gamma)
