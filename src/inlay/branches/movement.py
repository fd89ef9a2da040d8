"""How far each layer of a network moved between two stages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from inlay.branches.history import Stage
from inlay.branches.hybrid import is_hybrid
from inlay.branches.text import aligned
from inlay.errors import InlayError

__all__ = ["LayerMovement", "Movement", "compare"]

_GAMMA = "gamma"
_HEADINGS = ("layer", "relative", "max |Δ|", "gamma")


@dataclass(frozen=True)
class LayerMovement:
    """How far one layer moved.

    The norms take in every floating tensor of the layer but gamma; gamma alone, if the layer has nothing else.

    Attributes:
        name: Name of the module; empty for the tensors of the network itself.
        size: ||W_a||, the L2 norm before.
        change: ||W_b - W_a||, the L2 norm of the movement.
        max_change: max |W_b - W_a|.
        gamma_change: Mean |Δγ| over the channels; None without gamma.
    """

    name: str
    size: float
    change: float
    max_change: float
    gamma_change: float | None

    @property
    def relative(self) -> float:
        """||W_b - W_a|| / ||W_a||; infinite where something arose from zeros."""
        if self.size == 0:
            return 0.0 if self.change == 0 else math.inf
        return self.change / self.size


@dataclass(frozen=True)
class Movement:
    """How far a network moved; `print` shows it as a table.

    Attributes:
        rows: One for each layer, in the order of the network unless sorted.
    """

    rows: tuple[LayerMovement, ...]

    @property
    def total(self) -> LayerMovement:
        """The movement of all layers together, without gamma."""
        return LayerMovement(
            name="total",
            size=math.hypot(*(row.size for row in self.rows)),
            change=math.hypot(*(row.change for row in self.rows)),
            # Unlike the maximum of Python, that of torch never loses a NaN.
            max_change=torch.tensor([row.max_change for row in self.rows], dtype=torch.float64).max().item(),
            gamma_change=None,
        )

    def sorted_by_movement(self) -> "Movement":
        """Return the same rows, the largest relative movement first."""
        return replace(self, rows=tuple(sorted(self.rows, key=lambda row: row.relative, reverse=True)))

    def __str__(self) -> str:
        return aligned([_HEADINGS, *(_cells(row) for row in self.rows), _cells(self.total)])


def compare(stage_a: Stage | nn.Module, stage_b: Stage | nn.Module) -> Movement:
    """Measure in float64 how far each layer moved from one stage or network to another.

    Args:
        stage_a: The stage or plain network to measure from.
        stage_b: The stage or plain network to measure to.

    Returns:
        One row for each layer that both have, in the order of the first.

    Raises:
        InlayError: If the two are different networks, one of them has branches, or a history is damaged.
    """
    before, after = _state(stage_a), _state(stage_b)
    layers: dict[str, list[str]] = {}
    for name in before:
        if name in after:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
    if not layers:
        raise InlayError("The two are different networks without a common layer; compare stages of one network.")
    return Movement(tuple(_layer_movement(layer, names, before, after) for layer, names in layers.items()))


def _state(stage: Stage | nn.Module) -> dict[str, Tensor]:
    if isinstance(stage, Stage):
        state = stage.state()
    elif is_hybrid(stage):
        raise InlayError("A network with branches cannot be compared; merge them with inlay.branches.merge first.")
    else:
        state = {name: value for name, value in stage.state_dict().items() if isinstance(value, Tensor)}
    return {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}


def _layer_movement(
    layer: str, names: list[str], before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> LayerMovement:
    gammas = [name for name in names if name.rpartition(".")[2] == _GAMMA]
    weights = [name for name in names if name not in gammas] or gammas
    old = torch.cat([_values(before[name]) for name in weights])
    change = torch.cat([_change(name, before, after) for name in weights])
    return LayerMovement(
        name=layer,
        size=old.norm().item(),
        change=change.norm().item(),
        max_change=change.abs().max().item() if change.numel() else 0.0,
        gamma_change=_change(gammas[0], before, after).abs().mean().item() if gammas else None,
    )


def _change(name: str, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Tensor:
    old, new = before[name], after[name]
    if old.shape != new.shape:
        raise InlayError(
            f"The two are different networks: {name!r} has the shapes {list(old.shape)} and {list(new.shape)}; "
            f"compare stages of one network."
        )
    return _values(new) - _values(old)


def _values(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double().flatten()


def _cells(row: LayerMovement) -> tuple[str, ...]:
    gamma = "" if row.gamma_change is None else f"{row.gamma_change:.2e}"
    return (row.name or "(network)", f"{row.relative:.2e}", f"{row.max_change:.2e}", gamma)
