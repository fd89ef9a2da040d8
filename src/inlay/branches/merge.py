"""Merging the branches of a hybrid network into its layers."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from inlay.branches.attachment import attachments, forget
from inlay.branches.buffers import buffers_kept
from inlay.branches.checks import check_finite
from inlay.branches.comparison import Difference, difference, full_precision_outputs
from inlay.branches.delta import applied, dtype_name, moved, rounded
from inlay.branches.example import Example, double
from inlay.branches.frozen import thaw
from inlay.branches.history import History
from inlay.branches.hybrid import branch_parameters, hybrid_units
from inlay.branches.parameters import count_parameters
from inlay.branches.surgery import copied, replace_modules
from inlay.branches.tolerance import tolerance_for
from inlay.errors import InlayError

__all__ = ["MergeReport", "merge"]


@dataclass(frozen=True)
class MergeReport:
    """The merged network and how exactly it follows the hybrid.

    Attributes:
        model: Plain network of the modules that were there before the branches, in eval mode.
        max_abs_diff: max |Δ| on the probe in the working precision; None without a probe.
        relative_diff: max |Δ| / max(1, max |output|) in the working precision; None without a probe.
        relative_diff_float64: The same with both networks in float64, nothing rounded; None if not compared.
        tolerance: Largest relative difference that was allowed in the working precision.
        parameters_before: Parameters of the network to which the branches were attached.
        parameters_hybrid: Parameters of the hybrid.
        parameters_after: Parameters of the merged network.
        stage: Number of the stage in the history; None without one.
    """

    model: nn.Module
    max_abs_diff: float | None
    relative_diff: float | None
    relative_diff_float64: float | None
    tolerance: float
    parameters_before: int
    parameters_hybrid: int
    parameters_after: int
    stage: int | None = None


def merge(
    hybrid: nn.Module,
    probe: Example | None = None,
    *,
    history: str | Path | History | None = None,
    storage: torch.dtype | None = None,
    tolerance: float | None = None,
    check_float64: bool = True,
    inplace: bool = False,
) -> MergeReport:
    """Merge every branch into its layer (Eqs. 11 and 12): W_t = W_{t−1} + delta_t, delta_t rounded to its storage type.

    The hybrid is left as it is, whatever happens, unless `inplace` is asked for and every check has passed.

    Args:
        hybrid: Network made by `attach`, or one that holds such a network.
        probe: Images on which hybrid and merged network are compared, in the form that the network accepts; without
            them nothing is compared.
        history: Folder, or history, that records the delta as a new stage; begun if it does not exist.
        storage: Type in which the delta is stored, such as torch.float16; None is that of the weights.
        tolerance: Largest relative difference allowed in the working precision; None is what suits the coarsest type
            of the weights and the delta: 1e-10 for float64, 1e-4 for float32, 5e-3 for float16, 5e-2 for bfloat16.
        check_float64: Whether to compare the two in float64 as well, which shows whether the algebra is exact; a
            network that casts to another type inside cannot be compared so.
        inplace: Whether to merge inside the hybrid itself, which then is the model of the report.

    Raises:
        InlayError: If a gate cannot be merged, a weight is not finite, the outputs differ, or the history refuses.
    """
    parameters_branches = sum(parameter.numel() for parameter in branch_parameters(hybrid))
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise InlayError(f"The tolerance of a merge is a relative difference such as 1e-4, not {tolerance}.")
    before, delta = _stage(hybrid, storage)
    if tolerance is None:
        tolerance = tolerance_for(tensor.dtype for tensor in (*hybrid.parameters(), *delta.values()))
    merged = _without_branches(hybrid, applied(before, delta))
    check_finite(merged, "go back to a checkpoint from before training diverged")
    parameters_hybrid = count_parameters(hybrid)
    report = MergeReport(
        model=merged,
        max_abs_diff=None,
        relative_diff=None,
        relative_diff_float64=None,
        tolerance=tolerance,
        parameters_before=parameters_hybrid - parameters_branches,
        parameters_hybrid=parameters_hybrid,
        parameters_after=count_parameters(merged),
    )
    if report.parameters_after != report.parameters_before:
        raise RuntimeError("the merged network has another number of parameters than before the branches")
    if probe is not None:
        report = _verified(report, hybrid, probe, check_float64)
    if history is not None:
        report = _recorded(report, hybrid, before, delta, history)
    return dataclasses.replace(report, model=_merge_inside(hybrid, merged)) if inplace else report


def _stage(hybrid: nn.Module, storage: torch.dtype | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return every tensor of the network before the stage, and what the stage adds to some of them."""
    units = hybrid_units(hybrid)
    raw = {f"{name}.{part}": value for name, unit in units.items() for part, value in unit.delta().items()}
    # A module that the network knows by two names has its tensors in the state under both.
    state = _without_branches(hybrid).state_dict()
    now = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    aliases = _aliases(now)
    raw = {alias: value for name, value in raw.items() for alias in aliases[name]}
    buffers = _buffers_at_attachment(hybrid, now)
    before = now | buffers
    return before, rounded(raw | moved(buffers, {name: now[name] for name in buffers}), before, storage)


def _aliases(state: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return for each name all names of the same tensor."""
    groups: dict[object, list[str]] = {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else name
        groups.setdefault(place, []).append(name)
    return {name: group for group in groups.values() for name in group}


def _buffers_at_attachment(hybrid: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    buffers = {}
    for prefix, record in attachments(hybrid).items():
        for name, value in record.buffers.items():
            buffers[f"{prefix}.{name}" if prefix else name] = value
    return {name: value.to(state[name]) for name, value in buffers.items() if name in state}


def _without_branches(hybrid: nn.Module, state: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Copy a hybrid as a plain network of its bases, with the given state if there is one."""
    plain = copied(hybrid)
    _take_branches_off(plain)
    if state is not None:
        plain.load_state_dict({**plain.state_dict(), **state})
    return plain.eval()


def _take_branches_off(hybrid: nn.Module) -> None:
    replace_modules(hybrid, {name: unit.base for name, unit in hybrid_units(hybrid).items()})
    forget(hybrid)
    thaw(hybrid)


def _merge_inside(hybrid: nn.Module, merged: nn.Module) -> nn.Module:
    _take_branches_off(hybrid)
    hybrid.load_state_dict(merged.state_dict())
    return hybrid.eval()


def _verified(report: MergeReport, hybrid: nn.Module, probe: Example, check_float64: bool) -> MergeReport:
    reference = copied(hybrid).eval()
    working = _compare(reference, report.model, probe, "probe", report.tolerance)
    report = dataclasses.replace(report, max_abs_diff=working.absolute, relative_diff=working.relative)
    if not check_float64:
        return report
    reference.double()
    merged = _without_branches(reference, applied(*_stage(reference, torch.float64)))
    try:
        exact = _compare(reference, merged, double(probe), "probe in float64", tolerance_for([torch.float64]))
    except InlayError as error:
        raise InlayError(
            f"The merge does not hold in float64, so nothing was merged; if the network casts to another type inside, "
            f"pass check_float64=False ({error})"
        ) from error
    return dataclasses.replace(report, relative_diff_float64=exact.relative)


def _compare(hybrid: nn.Module, merged: nn.Module, probe: Example, role: str, tolerance: float) -> Difference:
    with buffers_kept(hybrid, merged):
        outputs = full_precision_outputs(hybrid, probe, role)
        found = difference(outputs, full_precision_outputs(merged, probe, role))
    if not found.relative <= tolerance:
        raise InlayError(
            f"The merged network differs from the hybrid by {found.relative:.1e} (relative, "
            f"{dtype_name(outputs[0].dtype)}; {tolerance:.0e} is allowed), so nothing was merged; check that the "
            f"hybrid gives finite outputs on the probe and is deterministic in eval mode."
        )
    return found


def _recorded(
    report: MergeReport,
    hybrid: nn.Module,
    before: Mapping[str, Tensor],
    delta: Mapping[str, Tensor],
    history: str | Path | History,
) -> MergeReport:
    kept = history if isinstance(history, History) else History(history)
    tracked = [name for name in before if _is_tracked(hybrid, name)]
    units = hybrid_units(hybrid)
    facts = {
        "gates": {name: repr(unit.gate) for name, unit in units.items()},
        "storage": sorted({dtype_name(value.dtype) for value in delta.values()}),
        "tolerance": report.tolerance,
        "relative_diff": report.relative_diff,
        "relative_diff_float64": report.relative_diff_float64,
    }
    number = kept.record({name: before[name] for name in tracked}, delta, facts)
    return dataclasses.replace(report, stage=number)


def _is_tracked(hybrid: nn.Module, name: str) -> bool:
    """Say whether a tensor belongs to the frozen network: not to the user's head, nor to a module around it."""
    for prefix, record in attachments(hybrid).items():
        if not prefix or name.startswith(f"{prefix}."):
            return (name.removeprefix(f"{prefix}.") if prefix else name) not in record.yours
    return False
