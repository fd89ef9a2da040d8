"""Attaching novel branches to a folded network."""

import copy
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn

from inlay.branches.folded import FoldedConv
from inlay.branches.frozen import freeze
from inlay.branches.gates import Gate
from inlay.branches.gates import gate as find_gate
from inlay.branches.surgery import replace_modules
from inlay.branches.unit import HybridConv
from inlay.errors import InlayError

__all__ = ["attach", "attach_to", "branch_parameters", "folded_units", "hybrid_units", "is_hybrid"]


def attach(
    folded: nn.Module,
    gate: str | Gate = "amm",
    *,
    include: Sequence[str] | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Copy a folded network with a novel branch beside each folded convolution.

    Everything outside the branches is frozen: it has no gradients and stays in eval mode even after
    `train()`. Only the flag `training` of the network itself follows, so that it tells the mode of the
    branches. The copy, in eval mode, starts exactly at the function of the folded network.

    Args:
        folded: Network made by `fold` or `merge`; it is not changed.
        gate: Gate of every branch, or its name.
        include: Glob patterns for the names of the units that get a branch, such as "layer2*"; None is all.
        generator: Source of the novel kernels; None draws from torch's default CPU generator.

    Raises:
        InlayError: If the network is not folded, has branches already, or a pattern matches no unit.
    """
    chosen = find_gate(gate)
    if is_hybrid(folded):
        raise InlayError("The network has branches already; merge them with inlay.branches.merge first.")
    names = list(folded_units(folded))
    if not names:
        raise InlayError("The network has no folded convolution; fold it first with inlay.branches.fold.")
    selected = names if include is None else _matching(names, include)
    return attach_to(folded, chosen, selected, generator)


def attach_to(folded: nn.Module, gate: Gate, names: Sequence[str], generator: torch.Generator | None) -> nn.Module:
    """Copy a folded network with a novel branch beside each folded convolution that is named.

    Args:
        folded: Folded network without branches; it is not changed.
        gate: Gate of every branch.
        names: Module names of the folded convolutions that get a branch.
        generator: Source of the novel kernels; None draws from torch's default CPU generator.

    Returns:
        The hybrid in eval mode.
    """
    hybrid = copy.deepcopy(folded).requires_grad_(False)
    bases = folded_units(hybrid)
    replace_modules(hybrid, {name: HybridConv(bases[name], gate, generator) for name in names})
    _hold_rest_in_eval(hybrid)
    return hybrid.eval()


def folded_units(model: nn.Module) -> dict[str, FoldedConv]:
    """Return the folded convolutions of a network by module name, bases of branches left out."""
    bases = {id(unit.base) for unit in hybrid_units(model).values()}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, FoldedConv) and id(module) not in bases
    }


def hybrid_units(model: nn.Module) -> dict[str, HybridConv]:
    """Return the units with a branch by module name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, HybridConv)}


def is_hybrid(model: nn.Module) -> bool:
    """Say whether any branch is attached to a network."""
    return bool(hybrid_units(model))


def branch_parameters(hybrid: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters of every branch: kernel, scale and shift of each.

    Raises:
        InlayError: If the network has no branch.
    """
    units = hybrid_units(hybrid)
    if not units:
        raise InlayError("The network has no branches; attach them with inlay.branches.attach first.")
    return [parameter for unit in units.values() for part in (unit.novel, unit.norm) for parameter in part.parameters()]


def _matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InlayError(f"Pattern {pattern!r} matches none of the units: {', '.join(names)}.")
    selected = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not selected:
        raise InlayError("include is empty; write None for all units, or patterns such as 'layer2*'.")
    return selected


def _hold_rest_in_eval(hybrid: nn.Module) -> None:
    follows_mode = {id(hybrid)}
    for unit in hybrid_units(hybrid).values():
        follows_mode.update(id(module) for module in (unit, unit.novel, unit.norm))
    for module in hybrid.modules():
        if id(module) not in follows_mode:
            freeze(module)
