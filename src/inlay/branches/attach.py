"""Attaching novel branches to a network."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from inlay.branches.attachment import Attachment, attachments, buffers_outside, remember, tensors_left_to_user
from inlay.branches.buffers import buffers_kept
from inlay.branches.checks import check_network
from inlay.branches.comparison import difference, full_precision_outputs
from inlay.branches.example import Example
from inlay.branches.fold import check_same_outputs, fold_units
from inlay.branches.folded import Folded
from inlay.branches.frozen import freeze
from inlay.branches.gates import Gate
from inlay.branches.gates import gate as find_gate
from inlay.branches.hybrid import HybridUnit, branch_of, hybrid_units
from inlay.branches.layers import row_norms
from inlay.branches.plan import Plan, foldable, make_plan
from inlay.branches.surgery import copied, replace_modules
from inlay.branches.targets import Targets
from inlay.branches.units import NOT_CALLED, Unit, layer_of
from inlay.errors import InlayError

__all__ = ["attach", "attach_to"]


def attach(
    model: nn.Module,
    example: Example,
    gate: str | Gate = "amm",
    targets: Targets | None = None,
    *,
    gammas: Mapping[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Copy a network, folded, with a novel branch beside each chosen layer.

    Everything outside the branches is frozen: it has no gradients and stays in eval mode even after `train()`. Only
    the flag `training` of the network itself follows, so that it tells the mode of the branches. The copy, in eval
    mode, starts exactly at the function of the folded network.

    Args:
        model: Network in eval mode, as it is or from `fold` or `merge`; it is not changed.
        example: A batch that the network accepts; a tuple or a mapping for several arguments.
        gate: Gate of every branch, or its name.
        targets: Which layers get a branch, and of what shape; None is every layer that a norm can gate.
        gammas: Gammas of a network whose weights were merged before and written as plain weights; see `fold`.
        generator: Source of the novel kernels; None draws from torch's default CPU generator.

    Raises:
        InlayError: If the network, the example or a pattern is not fit, or no layer gets a branch.
    """
    chosen, targets = find_gate(gate), targets or Targets()
    check_network(model)
    with buffers_kept(model):
        plan = make_plan(model, example, targets)
    plan.require_branches()
    _warn_of_refusals(plan)
    folded = fold_units(model, foldable(plan, targets), gammas)
    check_same_outputs(model, folded, example)
    hybrid = attach_to(folded, plan.units, chosen, targets, generator)
    record = attachments(hybrid)[""]
    remember(hybrid, replace(record, buffers=buffers_outside(hybrid, record.yours)))
    _check_start(folded, hybrid, example, chosen)
    return hybrid


def attach_to(
    folded: nn.Module, units: Sequence[Unit], gate: Gate, targets: Targets, generator: torch.Generator | None
) -> nn.Module:
    """Copy a folded network with a novel branch beside the layer of each unit, without running it.

    Args:
        folded: Folded network without branches; it is not changed.
        units: The units that get a branch.
        gate: Gate of every branch.
        targets: Shape of the branches, and what is left to the user.
        generator: Source of the novel kernels; None draws from torch's default CPU generator.

    Returns:
        The hybrid in eval mode.
    """
    hybrid = copied(folded)
    yours = tensors_left_to_user(hybrid, targets)
    for parameter in hybrid.parameters():
        # The network may come from `fold` or `merge`, where everything is frozen.
        parameter.requires_grad_(id(parameter) in yours and parameter.is_floating_point())
    names = [name for name, tensor in hybrid.state_dict(keep_vars=True).items() if id(tensor) in yours]
    modules = dict(hybrid.named_modules())
    new = {unit.name: _hybrid_unit(unit, modules, gate, targets, generator) for unit in units}
    replace_modules(hybrid, new)
    _hold_rest_in_eval(hybrid, targets)
    remember(hybrid, Attachment(trainable=tuple(targets.trainable), yours=frozenset(names), buffers={}))
    return hybrid.eval()


def _hybrid_unit(
    unit: Unit, modules: Mapping[str, nn.Module], gate: Gate, targets: Targets, generator: torch.Generator | None
) -> HybridUnit:
    base = layer_of(modules, unit.name)
    if isinstance(base, Folded):
        gamma = base.gamma
    elif unit.kind == "mlp" and unit.norm is not None:
        gamma = modules[unit.norm].get_parameter("weight").detach()
    else:
        gamma = row_norms(base.weight)
    return HybridUnit(
        base,
        gate,
        gamma,
        side=unit.side,
        pointwise=targets.kernel == "1x1" and not isinstance(base, nn.Linear),
        batch_norm=targets.batch_norm and isinstance(base, Folded),
        generator=generator,
    )


def _hold_rest_in_eval(hybrid: nn.Module, targets: Targets) -> None:
    follows_mode = {id(hybrid)}
    for unit in hybrid_units(hybrid).values():
        follows_mode.update(id(module) for module in (unit, *branch_of(unit)))
    for name, module in hybrid.named_modules():
        # Of all norms, those with running statistics are the ones that the mode matters to.
        yours = bool(name) and targets.is_trainable(name) and not isinstance(module, _NormBase)
        if id(module) not in follows_mode and not yours:
            freeze(module)


def _warn_of_refusals(plan: Plan) -> None:
    refused = [row for row in plan.having("refused") if row.why != NOT_CALLED]
    if refused:
        reasons = "; ".join(f"{row.name}: {row.why}" for row in refused[:3])
        more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
        warnings.warn(f"These layers stay frozen without a branch ({reasons}{more}).", stacklevel=3)


def _check_start(folded: nn.Module, hybrid: nn.Module, example: Example, gate: Gate) -> None:
    """Refuse a hybrid that does not start at the function of the folded network, or that passes a branch by.

    Raises:
        InlayError: If it does.
    """
    units, called = hybrid_units(hybrid), set[nn.Module]()

    def note(unit: nn.Module, *_: object) -> None:
        called.add(unit)

    handles = [unit.register_forward_hook(note) for unit in units.values()]
    try:
        with buffers_kept(folded, hybrid):
            outputs = [full_precision_outputs(model, example, "example") for model in (folded, hybrid)]
    finally:
        for handle in handles:
            handle.remove()
    if difference(*outputs).absolute != 0:
        raise InlayError(
            f"The network with branches (gate {gate.name}) does not start at the function of the network: check that "
            f"it is deterministic in eval mode and that the gate lets nothing through where the branch is zero."
        )
    idle = next((name for name, unit in units.items() if unit not in called), None)
    if idle is not None:
        raise InlayError(
            f"The branch of {idle!r} is never called, as the network holds its layer outside its modules too, such as "
            f"in a plain list; use torch.nn.ModuleList, or exclude it: targets=Targets(exclude=[{idle!r}])."
        )
