"""How strongly base and branch respond in each unit of a hybrid."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from inlay.branches.example import Example, run
from inlay.branches.hybrid import HybridUnit, branch_of, hybrid_units
from inlay.errors import InlayError

__all__ = ["BranchMagnitudes", "UnitMagnitude", "branch_magnitudes"]


@dataclass(frozen=True)
class UnitMagnitude:
    """How strongly one unit responds: means over images of the largest |response| of an image.

    Attributes:
        name: Name of the unit in the hybrid.
        base: Of the frozen layer.
        novel: Of the branch with its batch norm, the gate left out.
        gated: Of what the branch adds to the base, the gate included.
    """

    name: str
    base: float
    novel: float
    gated: float


@dataclass(frozen=True)
class BranchMagnitudes:
    """How strongly the units of a hybrid respond to some images.

    Attributes:
        units: One entry per unit, in the order of the network's modules.
    """

    units: tuple[UnitMagnitude, ...]

    def to_json(self) -> dict[str, object]:
        """The magnitudes as a plain JSON object under the names of the attributes."""
        return {"units": [asdict(unit) for unit in self.units]}


def branch_magnitudes(hybrid: nn.Module, batches: Iterable[Example]) -> BranchMagnitudes:
    """Measure the largest |response| of base and branch in every unit, averaged over images.

    Every unit sees what it sees in the hybrid: the inputs of later units hold what the branches of earlier ones
    added. The first dimension of a response counts images, so a unit that is called twice counts each of them twice.

    Args:
        hybrid: Network with branches that are not merged, in eval mode; it is left as it was.
        batches: What the hybrid is given, on its device.

    Raises:
        InlayError: If there are no branches or no images, or the hybrid is in training mode or fails on a batch.
    """
    units = hybrid_units(hybrid)
    if not units:
        raise InlayError("The network has no branches; measure the hybrid before inlay.branches.merge.")
    if any(module.training for module in hybrid.modules()):
        raise InlayError("The hybrid is in training mode; call hybrid.eval() first.")
    sums = {name: _Sum(unit) for name, unit in units.items()}
    hooks = [unit.register_forward_hook(sums[name].add) for name, unit in units.items()]
    try:
        with torch.no_grad():
            for batch in batches:
                run(hybrid, batch, "batch")
    finally:
        for hook in hooks:
            hook.remove()
    return BranchMagnitudes(tuple(found.mean(name) for name, found in sums.items()))


class _Sum:
    """Sums up over images the largest |response| of the base, the branch and the gated branch of a unit."""

    def __init__(self, unit: HybridUnit) -> None:
        self.total = unit.gamma.new_zeros(3, dtype=torch.float64)
        self.count = 0

    def add(self, unit: nn.Module, arguments: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(unit, HybridUnit)
        responses = _responses(unit, arguments[0])
        self.total += torch.stack([response.double().abs().flatten(1).amax(1).sum() for response in responses])
        self.count += len(arguments[0])

    def mean(self, name: str) -> UnitMagnitude:
        if not self.count:
            raise InlayError(f"Unit {name!r} saw no images; pass at least one batch that reaches it.")
        base, novel, gated = (self.total / self.count).tolist()
        return UnitMagnitude(name, base, novel, gated)


def _responses(unit: HybridUnit, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return base, branch and gated branch, each [N, ...]; the first and the last add up to the unit's output."""
    base, novel = unit.base(inputs), _branch(unit, inputs)
    if not unit.gate.mergeable:
        # The difference of two near values would lose a small branch in lower precision.
        return base, novel, unit.gate.fuse(base.double(), novel.double()) - base.double()
    scale = unit.gate.scale(unit.gamma).to(novel.dtype)
    if not isinstance(unit.base, nn.Linear):
        scale = scale.view(-1, *[1] * (unit.base.weight.dim() - 2))
    return base, novel, _branch(unit, inputs * scale) if unit.side == "in" else scale * novel


def _branch(unit: HybridUnit, inputs: Tensor) -> Tensor:
    for part in branch_of(unit):
        inputs = part(inputs)
    return inputs
