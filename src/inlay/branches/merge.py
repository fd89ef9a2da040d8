"""Merging the branches of a hybrid network into plain convolutions."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inlay.branches.attach import branch_parameters, hybrid_units
from inlay.branches.comparison import Difference, difference, full_precision_output
from inlay.branches.frozen import thaw
from inlay.branches.unit import HybridConv
from inlay.errors import InlayError

__all__ = ["MergeReport", "count_parameters", "merge"]

_TOLERANCE_FLOAT64 = 1e-10


@dataclass(frozen=True)
class MergeReport:
    """The merged network and how exactly it follows the hybrid.

    Attributes:
        model: Plain network of folded convolutions, in eval mode.
        max_abs_diff: max |Δ| on the probe in the working precision; None without a probe.
        relative_diff: max |Δ| / max(1, max |output|) in the working precision; None without a probe.
        relative_diff_float64: The same with both networks in float64; None without a probe.
        parameters_before: Parameters of the folded network to which the branches were attached.
        parameters_hybrid: Parameters of the hybrid.
        parameters_after: Parameters of the merged network.
    """

    model: nn.Module
    max_abs_diff: float | None
    relative_diff: float | None
    relative_diff_float64: float | None
    parameters_before: int
    parameters_hybrid: int
    parameters_after: int


def merge(hybrid: nn.Module, probe: Tensor | None = None, tolerance: float = 1e-4) -> MergeReport:
    """Merge every branch into its base (Eqs. 11 and 12), on a copy; the hybrid is left as it is.

    Args:
        hybrid: Network made by `attach`.
        probe: Images on which hybrid and merged network are compared, [N, C, H, W].
        tolerance: Largest relative difference allowed in the working precision.

    Raises:
        InlayError: If a gate cannot be merged, a weight is not finite, or the outputs differ.
    """
    units = hybrid_units(hybrid)
    if not units:
        raise InlayError("The network has no branches; attach them with inlay.branches.attach first.")
    for unit in units.values():
        if not unit.gate.mergeable:
            raise InlayError(
                f"{unit.gate.name.upper()} gates depend on the image and cannot be merged; "
                f"keep the hybrid or train with gate amm"
            )
    merged = _merged_copy(hybrid)
    _check_structure(hybrid, merged)
    _check_finite(merged)
    working = exact = None
    if probe is not None:
        reference = copy.deepcopy(hybrid).eval()
        working = _compare(reference, merged, probe, tolerance)
        reference.double()
        exact = _compare(reference, _merged_copy(reference), probe.double(), _TOLERANCE_FLOAT64)
    count_hybrid = count_parameters(hybrid)
    return MergeReport(
        model=merged,
        max_abs_diff=None if working is None else working.absolute,
        relative_diff=None if working is None else working.relative,
        relative_diff_float64=None if exact is None else exact.relative,
        parameters_before=count_hybrid - sum(parameter.numel() for parameter in branch_parameters(hybrid)),
        parameters_hybrid=count_hybrid,
        parameters_after=count_parameters(merged),
    )


def count_parameters(model: nn.Module) -> int:
    """Count the values of all parameters of a network; buffers are left out."""
    return sum(parameter.numel() for parameter in model.parameters())


def _merged_copy(hybrid: nn.Module) -> nn.Module:
    # The memo makes the copy take each merged convolution where it finds the unit.
    merged = copy.deepcopy(hybrid, {id(unit): unit.merged() for unit in hybrid_units(hybrid).values()})
    thaw(merged)
    return merged.eval().requires_grad_(False)


def _compare(hybrid: nn.Module, merged: nn.Module, probe: Tensor, tolerance: float) -> Difference:
    found = difference(full_precision_output(hybrid, probe), full_precision_output(merged, probe))
    if not found.relative <= tolerance:
        raise InlayError(
            f"The merged network differs from the hybrid by {found.relative:.1e} (relative, {probe.dtype}; "
            f"{tolerance:.0e} is allowed), so nothing was merged; check that the hybrid gives finite outputs "
            f"on the probe and is deterministic in eval mode."
        )
    return found


def _check_structure(hybrid: nn.Module, merged: nn.Module) -> None:
    """Make sure that merging gave the names and shapes of the network before the branches."""
    expected = {name: tensor.shape for name, tensor in hybrid.state_dict().items()}
    # The state of a module appears under every name by which the network knows it.
    modules = hybrid.named_modules(remove_duplicate=False)
    for unit_name in [name for name, module in modules if isinstance(module, HybridConv)]:
        inside = [name for name in expected if name.startswith(f"{unit_name}.")]
        for name in inside:
            shape = expected.pop(name)
            part, _, rest = name.removeprefix(f"{unit_name}.").partition(".")
            if part == "base":
                expected[f"{unit_name}.{rest}"] = shape
    if expected != {name: tensor.shape for name, tensor in merged.state_dict().items()}:
        raise RuntimeError("the merged network has other names or shapes than the one before the branches")


def _check_finite(merged: nn.Module) -> None:
    for name, tensor in merged.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InlayError(
                f"Merging would give values in {name!r} that are not finite, so nothing was merged; go back "
                f"to a checkpoint from before training diverged."
            )
