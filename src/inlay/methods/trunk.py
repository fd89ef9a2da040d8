"""Opening a frozen network for a discovery stage, and closing it again."""

import copy

from torch import Tensor, nn

from inlay import branches
from inlay.branches import Gate, MergeReport, Targets
from inlay.engine.randomness import generator
from inlay.errors import InlayError
from inlay.settings import BranchSettings

__all__ = ["check_backbone", "close_trunk", "open_trunk", "trunk_gate"]


def check_backbone(network: nn.Module, settings: BranchSettings, example: Tensor) -> None:
    """Refuse a network that could not take the branches of later stages, before time is spent on training it.

    Args:
        network: Network before the base stage; it is not changed.
        settings: Which parts later stages train.
        example: Network inputs.

    Raises:
        InlayError: If no layer could get a branch.
    """
    if trunk_gate(settings) is not None:
        branches.plan(copy.deepcopy(network).eval(), example, _targets(settings)).require_branches()


def open_trunk(network: nn.Module, settings: BranchSettings, seed: int, example: Tensor) -> nn.Module:
    """Return a copy of a folded network with the parts that the stage may train.

    Args:
        network: Folded network in eval mode; it is not changed.
        settings: Which parts are trained.
        seed: Seed of the stage, for the novel kernels.
        example: Network inputs.

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
    return branches.attach(network, example, gate, _targets(settings), generator=randomness)


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


def _targets(settings: BranchSettings) -> Targets:
    kinds = "all" if settings.kinds == ("all",) else settings.kinds or None
    return Targets(include=settings.include or None, kinds=kinds, kernel=settings.kernel)


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
