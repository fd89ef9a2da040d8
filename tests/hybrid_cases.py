"""Hybrid units of every kind, with arbitrary values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from inlay.branches import gate
from inlay.branches.folded import fold_layer, folded_norm
from inlay.branches.gates import Gate
from inlay.branches.hybrid import HybridUnit
from inlay.branches.layers import Layer


@dataclass(frozen=True)
class Ramp(Gate):
    """A gate of one's own: 0.1, 0.2, ... whatever gamma is."""

    name: ClassVar[str] = "ramp"

    def scale(self, gamma: Tensor) -> Tensor:
        return torch.arange(1, len(gamma) + 1, dtype=gamma.dtype) / 10


GATES = [gate("imm"), gate("amm"), gate("amm", absolute=True), gate("constant", value=-0.7), Ramp()]
BASES: dict[str, tuple[Callable[[], Layer], Any, tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.BatchNorm1d, (3, 2, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 4, (3, 1), stride=(1, 2), padding=(1, 0)), nn.BatchNorm2d, (2, 2, 4, 4)),
    "dilated": (lambda: nn.Conv2d(2, 4, 3, dilation=2, padding=2), nn.BatchNorm2d, (2, 2, 4, 3)),
    "grouped": (lambda: nn.Conv2d(4, 4, 3, groups=2), nn.BatchNorm2d, (2, 4, 4, 4)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d, (2, 2, 2, 3, 2)),
    "linear": (lambda: nn.Linear(5, 4), nn.BatchNorm1d, (4, 5)),
}
UNITS: list[tuple[str, dict[str, Any]]] = [
    ("conv1d", {}),
    ("conv2d", {"pointwise": True}),
    ("dilated", {}),
    ("linear", {}),
    ("conv3d", {}),
    ("conv2d", {"batch_norm": False}),
    ("linear", {"batch_norm": False}),
]
every_base = pytest.mark.parametrize("kind", BASES)
every_gate = pytest.mark.parametrize("chosen", GATES, ids=str)
every_unit = pytest.mark.parametrize(("kind", "options"), UNITS, ids=str)


def lively(module: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=generator)
        for name, buffer in module.named_buffers():
            if name == "running_mean":
                buffer.normal_(generator=generator)
            if name == "running_var":
                buffer.uniform_(0.2, 2, generator=generator)


def unit_on(kind: str, chosen: Gate, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[HybridUnit, Tensor]:
    """Make a unit on a folded base whose branch has arbitrary values, and what it accepts."""
    generator = torch.Generator().manual_seed(0)
    make, norm_class, shape = BASES[kind]
    layer, norm = make(), norm_class(4)
    lively(layer, generator)
    lively(norm, generator)
    base: Any = fold_layer(layer, norm, folded_norm(norm)).to(dtype)
    unit = HybridUnit(base, chosen, base.gamma, generator=generator, **options)
    lively(unit.novel, generator)
    if unit.norm is not None:
        lively(unit.norm, generator)
    return unit.eval(), torch.randn(shape, generator=generator).to(dtype)
