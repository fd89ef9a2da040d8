"""The structure of a folded or hybrid network as plain data, for saving without pickling."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from inlay.branches.attach import attach_to, folded_units, hybrid_units
from inlay.branches.fold import fold_unchecked
from inlay.branches.gates import gate as find_gate
from inlay.errors import InlayError

__all__ = ["describe", "rebuild"]


def describe(model: nn.Module) -> dict[str, Any]:
    """Describe the structure of a folded or hybrid network as JSON-ready data.

    Returns:
        "kind" ("folded" or "hybrid"), "units" (names of all folded convolutions), "branches" (names of those
        with a branch) and "gate" (its "name" and "options", or None).

    Raises:
        InlayError: If the network is not folded.
    """
    hybrids = hybrid_units(model)
    convs = folded_units(model)
    units = [name for name, _ in model.named_modules() if name in hybrids or name in convs]
    if not units:
        raise InlayError("The network has no folded convolution; fold it first with inlay.branches.fold.")
    gates = {unit.gate for unit in hybrids.values()}
    if len(gates) > 1:
        raise ValueError("a network whose branches have different gates cannot be described")
    gate = next(iter(gates), None)
    return {
        "kind": "hybrid" if hybrids else "folded",
        "gate": None if gate is None else {"name": gate.name, "options": dataclasses.asdict(gate)},
        "units": units,
        "branches": list(hybrids),
    }


def rebuild(plain_backbone: nn.Module, description: Mapping[str, Any], example: Tensor) -> nn.Module:
    """Give a plain backbone the structure that was described, ready for a strict `load_state_dict`.

    Args:
        plain_backbone: Backbone as it was before folding, with arbitrary weights; it is not changed.
        description: What `describe` returned.
        example: A batch of images the backbone accepts, [N, C, H, W].

    Raises:
        InlayError: If the description is malformed or belongs to another backbone.
    """
    try:
        kind, gate = description["kind"], description["gate"]
        units, branches = description["units"], description["branches"]
    except KeyError as error:
        raise InlayError(
            f"The network description lacks the entry {error}; write it with inlay.branches.describe."
        ) from error
    if kind not in ("folded", "hybrid") or (kind == "hybrid") != (gate is not None):
        raise InlayError(
            f"The network description has kind {kind!r} with gate {gate!r}; write kind 'folded' without a "
            f"gate or kind 'hybrid' with one."
        )
    folded = fold_unchecked(plain_backbone, example)
    found = list(folded_units(folded))
    if found != list(units) or not set(branches) <= set(found):
        raise InlayError(
            f"The network description names the units {', '.join(units)}, but this backbone has "
            f"{', '.join(found)}; build the backbone that was saved."
        )
    if gate is None:
        return folded
    # A generator of its own: the values are overwritten by the state that is loaded next.
    return attach_to(folded, find_gate(gate["name"], **gate["options"]), branches, torch.Generator())
