"""The structure of a folded or hybrid network as plain data, for saving without pickling."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from inlay.branches.attach import attach_to
from inlay.branches.attachment import attachments
from inlay.branches.example import Example
from inlay.branches.fold import fold_units, folded_layers
from inlay.branches.folded import Folded
from inlay.branches.gates import gate as find_gate
from inlay.branches.hybrid import hybrid_units
from inlay.branches.surgery import copied
from inlay.branches.targets import Targets
from inlay.branches.trace import is_batch_norm
from inlay.branches.units import find_units, layer_of
from inlay.errors import InlayError

__all__ = ["describe", "rebuild"]

_Value = TypeVar("_Value")


def describe(model: nn.Module) -> dict[str, Any]:
    """Describe the structure of a folded or hybrid network as JSON-ready data.

    Returns:
        "kind" ("folded" or "hybrid"), "units" (names of all folded layers), "norms" (names of the batch norms that are
        not folded), "branches" (names of the layers with a branch), "gate" (its "name" and "options", or None), the
        shape of the branches ("kernel" and "batch_norm"), and "trainable" (patterns of the modules that are left to
        the user).

    Raises:
        ValueError: If the branches were not all attached at once.
    """
    hybrids = hybrid_units(model)
    # A folded layer with a branch is the base of a unit, and known by the name of the unit.
    bases = {f"{name}.base": name for name in hybrids}
    gate = _common([unit.gate for unit in hybrids.values()], default=None)
    kernels = [unit.pointwise for unit in hybrids.values() if not isinstance(unit.base, nn.Linear)]
    normed = [unit.norm is not None for unit in hybrids.values() if isinstance(unit.base, Folded)]
    in_branches = {id(unit.norm) for unit in hybrids.values()}
    norms = [name for name, module in model.named_modules() if is_batch_norm(module) and id(module) not in in_branches]
    return {
        "kind": "hybrid" if hybrids else "folded",
        "gate": None if gate is None else {"name": gate.name, "options": dataclasses.asdict(gate)},
        "units": [bases.get(name, name) for name in folded_layers(model)],
        "norms": norms,
        "branches": list(hybrids),
        "kernel": "1x1" if _common(kernels, default=False) else "same",
        "batch_norm": _common(normed, default=True),
        "trainable": list(_common([record.trainable for record in attachments(model).values()], default=())),
    }


def rebuild(plain_backbone: nn.Module, description: Mapping[str, Any], example: Example) -> nn.Module:
    """Give a plain backbone the structure that was described, ready for a strict `load_state_dict`.

    Args:
        plain_backbone: Backbone as it was before folding, with arbitrary weights; it is not changed.
        description: What `describe` returned.
        example: A batch that the backbone accepts; a tuple or a mapping for several arguments.

    Raises:
        InlayError: If the description is malformed or belongs to another backbone.
    """
    try:
        kind, gate = description["kind"], description["gate"]
        units, norms, branches = description["units"], description["norms"], description["branches"]
        targets = Targets(
            kernel=description["kernel"], batch_norm=description["batch_norm"], trainable=description["trainable"]
        )
        chosen = None if gate is None else find_gate(gate["name"], **gate["options"])
    except KeyError as error:
        raise InlayError(
            f"The network description lacks the entry {error}; write it with inlay.branches.describe."
        ) from error
    if kind not in ("folded", "hybrid") or (kind == "hybrid") != (chosen is not None):
        raise InlayError(
            f"The network description has kind {kind!r} with gate {gate!r}; write kind 'folded' without a "
            f"gate or kind 'hybrid' with one."
        )
    plain = copied(plain_backbone).eval()
    found = {unit.name: unit for unit in find_units(plain, example).units}
    modules = dict(plain.named_modules())
    # Arbitrary weights may look like merged ones; their gammas are loaded next, so any will do.
    any_gammas = {name: torch.ones(layer_of(modules, name).weight.shape[0]) for name in found}
    folded = fold_units(plain, [found[name] for name in units if name in found], any_gammas)
    missing = [name for name in units if name not in folded_layers(folded)]
    missing += [name for name in branches if name not in found]
    if missing:
        raise InlayError(
            f"The network description has a unit {missing[0]!r}, but this backbone has {', '.join(found) or 'none'}; "
            f"build the backbone that was saved."
        )
    other = {name for name, module in folded.named_modules() if is_batch_norm(module)} ^ set(norms)
    if other:
        raise InlayError(
            f"The network description and this backbone do not both have {min(other)!r} as a batch norm that is not "
            f"folded; build the backbone that was saved."
        )
    if chosen is None:
        return folded.requires_grad_(False)
    # A generator of its own: the values are overwritten by the state that is loaded next.
    return attach_to(folded, [found[name] for name in branches], chosen, targets, torch.Generator())


def _common(values: Sequence[_Value], default: _Value) -> _Value:
    """Return the value that all have in common, or the default if there is none at all."""
    if any(value != values[0] for value in values):
        raise ValueError("a network whose branches differ in gate or shape cannot be described")
    return values[0] if values else default
