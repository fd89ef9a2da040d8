"""Opening a frozen network for a discovery stage, and closing it again."""

import copy

from torch import Tensor, nn

from inlay import branches
from inlay.branches import Gate, MergeReport
from inlay.engine.randomness import generator
from inlay.errors import InlayError
from inlay.settings import BranchSettings

__all__ = ["close_trunk", "open_trunk", "trunk_gate"]


def open_trunk(network: nn.Module, settings: BranchSettings, seed: int) -> nn.Module:
    """Return a copy of a folded network with the parts that the stage may train.

    Args:
        network: Folded network; it is not changed.
        settings: Which parts are trained.
        seed: Seed of the stage, for the novel kernels.

    Raises:
        InlayError: If the network is a hybrid that could not be merged, or cannot take branches.
    """
    if branches.is_hybrid(network):
        raise InlayError(
            "AFF branches depend on the image and cannot be merged, so no stage can follow one with branch.gate=aff; "
            "repeat the run with branch.gate=amm to discover in several stages."
        )
    gate = trunk_gate(settings)
    if gate is None:
        return copy.deepcopy(network).requires_grad_(settings.gate == "full")
    randomness = generator(seed, "branches")
    return branches.attach(network, gate, include=settings.include or None, generator=randomness)


def trunk_gate(settings: BranchSettings) -> Gate | None:
    """Return the gate of the branches, or None where there are none.

    Raises:
        InlayError: If there is no gate of that name.
    """
    if settings.gate in ("full", "frozen"):
        return None
    options: dict[str, object] = {}
    if settings.gate == "amm":
        options["absolute"] = settings.absolute_gamma
    if settings.gate == "constant":
        options["value"] = settings.constant
    return branches.gate(settings.gate, **options)


def close_trunk(trunk: nn.Module, probe: Tensor) -> tuple[nn.Module, MergeReport | None]:
    """Return the network for the next stage and, where branches were merged, how exactly.

    A hybrid whose gate cannot be merged (AFF) is returned as it is.

    Args:
        trunk: Network made by `open_trunk`, trained.
        probe: Network inputs on which hybrid and merged network are compared.
    """
    units = branches.hybrid_units(trunk).values()
    if units and all(unit.gate.mergeable for unit in units):
        report = branches.merge(trunk, probe)
        return report.model, report
    return trunk.eval().requires_grad_(False), None
