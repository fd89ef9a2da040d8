"""Opening a frozen network for a discovery stage, and closing it again."""

import copy

from torch import Tensor, nn

from inlay import branches
from inlay.backbones.twin import TwinNetwork
from inlay.branches import Gate, MergeReport, Targets
from inlay.branches.targets import matches
from inlay.engine.randomness import generator
from inlay.errors import InlayError
from inlay.settings import BranchSettings

__all__ = ["check_backbone", "close_trunk", "open_trunk", "starting_network", "trunk_gate"]

# Gates under which the network itself is trained, with its batch norms.
_WHOLE = ("full", "twin")


def check_backbone(network: nn.Module, settings: BranchSettings, example: Tensor) -> None:
    """Refuse a network in which later stages would find nothing to train, before time is spent on training it.

    Args:
        network: Network before the base stage; it is not changed.
        settings: Which parts later stages train.
        example: Network inputs.

    Raises:
        InlayError: If no layer could get a branch, or a pattern matches nothing.
    """
    if trunk_gate(settings) is not None:
        branches.plan(copy.deepcopy(network).eval(), example, _targets(settings)).require_branches()
    elif settings.gate == "full":
        _trained_parameters(network, settings)


def starting_network(network: nn.Module, settings: BranchSettings, example: Tensor) -> nn.Module:
    """Return the network that a stage starts from and is held against, frozen.

    It is the folded network, with its gammas as buffers, unless the stage trains the network itself: then batch norms
    stay what they are. Folding changes nothing in a network that is folded or merged already.

    Args:
        network: Network of the stage before, in eval mode; it is not changed.
        settings: Which parts the stage trains.
        example: Network inputs.

    Raises:
        InlayError: If the network cannot be folded.
    """
    # A hybrid that was not merged cannot be folded either; `open_trunk` says what to do about it.
    if settings.gate in _WHOLE or branches.is_hybrid(network):
        return network
    return branches.fold(network, example)


def open_trunk(network: nn.Module, settings: BranchSettings, seed: int, example: Tensor) -> nn.Module:
    """Return a copy of a network with the parts that the stage may train.

    With the gate "full" these are the parameters that `include` chooses, or all. The batch norms of the other layers
    are in train mode during training like the rest: their scales and shifts are fixed, their running statistics move.

    Args:
        network: What `starting_network` returned; it is not changed.
        settings: Which parts are trained.
        seed: Seed of the stage, for the novel kernels.
        example: Network inputs.

    Raises:
        InlayError: If the network is a hybrid that could not be merged, cannot take branches, or a pattern matches
            nothing.
    """
    if branches.is_hybrid(network):
        raise InlayError(
            "AFF branches depend on the image and cannot be merged, so no stage can follow one with branch.gate=aff; "
            "repeat the run with branch.gate=amm to discover in several stages."
        )
    if settings.gate == "twin":
        return _twin(network, seed)
    gate = trunk_gate(settings)
    if gate is None:
        trunk = copy.deepcopy(network).requires_grad_(False)
        for parameter in _trained_parameters(trunk, settings) if settings.gate == "full" else []:
            parameter.requires_grad_(True)
        return trunk
    randomness = generator(seed, "branches")
    return branches.attach(network, example, gate, _targets(settings), generator=randomness)


def _twin(network: nn.Module, seed: int) -> TwinNetwork:
    if isinstance(network, TwinNetwork):
        raise InlayError("A network has one twin at most; repeat the run with branch.gate=full to discover again.")
    like = next(network.parameters())
    return TwinNetwork(network, generator(seed, "twin")).requires_grad_(True).to(like)


def _trained_parameters(network: nn.Module, settings: BranchSettings) -> list[nn.Parameter]:
    """Return the parameters whose name, or that of a module around them, matches a pattern; all without patterns."""
    parameters = dict(network.named_parameters())
    for pattern in settings.include:
        if not any(matches(name, [pattern]) for name in parameters):
            parts = ", ".join(dict.fromkeys(name.partition(".")[0] for name in parameters))
            raise InlayError(
                f"The pattern {pattern!r} in branch.include matches no parameter; choose among the parts of the "
                f"network: {parts or 'there are none'}."
            )
    return [value for name, value in parameters.items() if not settings.include or matches(name, settings.include)]


def trunk_gate(settings: BranchSettings) -> Gate | None:
    """Return the gate of the branches, or None where there are none.

    Raises:
        InlayError: If there is no gate of that name.
    """
    if settings.gate in (*_WHOLE, "frozen"):
        return None
    options: dict[str, object] = {}
    if settings.gate == "amm":
        options["absolute"] = settings.absolute_gamma
    if settings.gate == "constant":
        options["value"] = settings.constant
    return branches.gate(settings.gate, **options)


def _targets(settings: BranchSettings) -> Targets:
    kinds = "all" if settings.kinds == ("all",) else settings.kinds or None
    return Targets(
        include=settings.include or None, kinds=kinds, kernel=settings.kernel, batch_norm=settings.batch_norm
    )


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
