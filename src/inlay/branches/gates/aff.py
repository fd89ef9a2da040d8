"""Adaptive feature fusion: the base features gate the novel ones."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from inlay.branches.gates.gate import Gate, register

__all__ = ["AFF"]


@register
@dataclass(frozen=True)
class AFF(Gate):
    """Adaptive feature fusion, g = σ(−base_out) per element (first line of Eq. 9).

    The gate depends on the image, so the branch cannot be merged. Gradients flow through the gate to the branches
    of earlier layers.
    """

    name: ClassVar[str] = "aff"
    mergeable: ClassVar[bool] = False

    def fuse(self, base_out: Tensor, novel_out: Tensor) -> Tensor:
        """Return base_out + σ(−base_out) ⊗ novel_out."""
        return torch.addcmul(base_out, torch.sigmoid(-base_out), novel_out)
