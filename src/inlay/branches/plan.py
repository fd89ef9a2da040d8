"""What attaching branches to a network would do, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import nn

from inlay.branches.buffers import buffers_kept
from inlay.branches.checks import check_network
from inlay.branches.example import Example
from inlay.branches.layers import Layer
from inlay.branches.targets import Targets, matches
from inlay.branches.text import aligned
from inlay.branches.units import Refusal, Unit, find_units, layer_of
from inlay.errors import InlayError

__all__ = ["Plan", "PlanRow", "foldable", "make_plan", "plan"]

Action: TypeAlias = Literal["branch", "frozen", "refused", "yours"]

_TOTALS: dict[Action, str] = {"branch": "with a branch", "frozen": "frozen", "refused": "refused", "yours": "yours"}
_YOURS = "you train it"
_GATED_BY = {"conv-bn": "batch norm", "linear-bn": "batch norm", "conv": "row norms", "linear": "row norms"}


@dataclass(frozen=True)
class PlanRow:
    """What happens to one layer.

    Attributes:
        name: Module name.
        layer: What it is, such as "Conv2d 64→128 3×3".
        action: "branch": gets one; "frozen": could have one, but is not chosen; "refused": cannot have one; "yours":
            left to your own training.
        why: What gates its branch, or why it has none.
        parameters: Parameters of the branch; 0 if there is none.
        unit: The unit, if it could take a branch.
    """

    name: str
    layer: str
    action: Action
    why: str
    parameters: int = 0
    unit: Unit | None = None


@dataclass(frozen=True)
class Plan:
    """What attaching branches to a network would do; print it to read it.

    Attributes:
        rows: One row per layer, in the order in which the layers run; last those that no targets could give a branch.
    """

    rows: tuple[PlanRow, ...]

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units that get a branch."""
        return tuple(row.unit for row in self.rows if row.action == "branch" and row.unit is not None)

    def having(self, action: Action) -> tuple[PlanRow, ...]:
        """Return the rows of one action."""
        return tuple(row for row in self.rows if row.action == action)

    def require_branches(self) -> None:
        """Refuse a plan without any branch.

        Raises:
            InlayError: If no layer gets a branch; with the reasons of the first few.
        """
        if self.units:
            return
        reasons = "; ".join(f"{row.name}: {row.why}" for row in self.rows[:3])
        if not self.rows:
            reasons = "it calls no torch.nn convolution or linear layer"
        raise InlayError(
            f"No layer of the network gets a branch ({reasons}); choose others with targets=Targets(...), see "
            f"inlay.branches.plan."
        )

    def __str__(self) -> str:
        """Give the table with a line of totals."""
        header = ("layer", "is", "gets", "why")
        table = aligned([header, *[(row.name, row.layer, row.action, row.why) for row in self.rows]])
        counts = ", ".join(
            f"{len(self.having(action))} {text}" for action, text in _TOTALS.items() if self.having(action)
        )
        added = sum(row.parameters for row in self.rows)
        return f"{table}\n{counts or 'no layer'}; {added:,} parameters in the branches until they are merged"


def plan(model: nn.Module, example: Example, targets: Targets | None = None) -> Plan:
    """Say which layers of a network would get a branch, what would gate each, and which cannot have one and why.

    Args:
        model: Network in eval mode; it is not changed.
        example: A batch that the network accepts; a tuple or a mapping for several arguments.
        targets: Which layers shall get a branch; None is every layer that a norm can gate.

    Raises:
        InlayError: If the network or the example is not fit for branches, or a pattern matches nothing.
    """
    check_network(model)
    with buffers_kept(model):
        return make_plan(model, example, targets or Targets())


def make_plan(model: nn.Module, example: Example, targets: Targets) -> Plan:
    """Plan as `plan` does, whatever the weights hold."""
    findings = find_units(model, example)
    modules = dict(model.named_modules())
    targets.check_patterns([unit.name for unit in findings.units] + [refusal.name for refusal in findings.refusals])
    _check_trainable(targets, list(modules))
    rows = [
        _row(unit, layer_of(modules, unit.name), index / len(findings.units), targets)
        for index, unit in enumerate(findings.units)
    ]
    rows += [_refused_row(refusal, modules[refusal.name], targets) for refusal in findings.refusals]
    planned = Plan(tuple(rows))
    foldable(planned, targets)
    return planned


def foldable(plan: Plan, targets: Targets) -> list[Unit]:
    """Return the units whose batch norms are folded: all but the user's.

    Raises:
        InlayError: If the batch norm of one is left to the user.
    """
    norms_in_use = {row.unit.norm for row in plan.having("yours") if row.unit is not None}
    units = [row.unit for row in plan.rows if row.unit is not None and row.action != "yours"]
    for unit in units:
        norm = unit.norm if unit.kind in ("conv-bn", "linear-bn") else None
        if norm is not None and (targets.is_trainable(norm) or norm in norms_in_use):
            raise InlayError(
                f"Batch norm {norm!r} is left to you, but layer {unit.name!r} in front of it is not, and takes it "
                f"along when it is folded; name both in trainable, or neither."
            )
    return units


def describe_layer(layer: nn.Module) -> str:
    """Describe a layer in a few words, such as "Conv2d 64→128 3×3"."""
    kind = type(layer).__name__
    if isinstance(layer, nn.Linear):
        return f"{kind} {layer.in_features}→{layer.out_features}"
    if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        groups = f" groups {layer.groups}" if layer.groups > 1 else ""
        return f"{kind} {layer.in_channels}→{layer.out_channels} {'×'.join(map(str, layer.kernel_size))}{groups}"
    return kind


def _row(unit: Unit, layer: Layer, position: float, targets: Targets) -> PlanRow:
    words = describe_layer(layer)
    if targets.is_trainable(unit.name):
        return PlanRow(unit.name, words, "yours", _YOURS, unit=unit)
    if left_out := targets.why_left_out(unit, layer, position):
        return PlanRow(unit.name, words, "frozen", left_out, unit=unit)
    if refused := targets.why_refused(layer):
        return PlanRow(unit.name, words, "refused", refused, unit=unit)
    return PlanRow(unit.name, words, "branch", _gated_by(unit), _branch_size(unit, layer, targets), unit)


def _refused_row(refusal: Refusal, layer: nn.Module, targets: Targets) -> PlanRow:
    words = describe_layer(layer)
    if targets.is_trainable(refusal.name):
        return PlanRow(refusal.name, words, "yours", _YOURS)
    return PlanRow(refusal.name, words, "refused", refusal.reason)


def _gated_by(unit: Unit) -> str:
    if unit.kind == "mlp":
        return f"gated by layer norm {unit.norm} on its {unit.side}put"
    behind = f" {unit.norm}" if unit.norm else ""
    return f"gated by {_GATED_BY[unit.kind]}{behind}" + (f" ({unit.note})" if unit.note else "")


def _branch_size(unit: Unit, layer: Layer, targets: Targets) -> int:
    channels, per_channel = layer.weight.shape[0], layer.weight[0].numel()
    if targets.kernel == "1x1":
        per_channel = layer.weight.shape[1]
    if unit.kind in ("conv-bn", "linear-bn"):
        return channels * (per_channel + 2 * targets.batch_norm)
    return channels * (per_channel + (layer.bias is not None))


def _check_trainable(targets: Targets, names: Sequence[str]) -> None:
    for pattern in targets.trainable:
        if not any(matches(name, [pattern]) for name in names if name):
            last = ", ".join(names[-3:])
            raise InlayError(f"Pattern {pattern!r} in trainable matches no module; write a name such as {last}.")
