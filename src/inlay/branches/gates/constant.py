"""A gate that is the same for every channel."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from inlay.branches.gates.gate import Gate, register
from inlay.errors import InlayError

__all__ = ["Constant"]


@register
@dataclass(frozen=True)
class Constant(Gate):
    """One fixed factor for every channel.

    Attributes:
        value: The factor.
    """

    name: ClassVar[str] = "constant"
    value: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise InlayError(f"The constant gate needs a finite value such as value=0.5, not {self.value}.")

    def scale(self, gamma: Tensor) -> Tensor:
        """Return the factor repeated, [C]."""
        return torch.full_like(gamma, self.value)
