"""Folding each layer and its batch norm into one layer."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from inlay.branches.buffers import buffers_kept
from inlay.branches.checks import check_network
from inlay.branches.comparison import difference, full_precision_outputs
from inlay.branches.example import Example
from inlay.branches.folded import Folded, FoldedNorm, fold_layer, folded_norm
from inlay.branches.surgery import copied, replace_modules
from inlay.branches.tolerance import tolerance_for
from inlay.branches.units import Unit, find_units, layer_of
from inlay.errors import InlayError

__all__ = ["check_same_outputs", "fold", "fold_units", "folded_layers", "gammas"]


def fold(model: nn.Module, example: Example, *, gammas: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Copy a network with each layer and the batch norm behind it folded into one frozen layer.

    Module names are kept: a folded layer takes the place of each layer, and what stands for its batch norm passes
    its input on. A network without batch norms is copied and frozen.

    Args:
        model: Trained network in eval mode; it is not changed.
        example: A batch that the network accepts; a tuple or a mapping for several arguments.
        gammas: Gamma [C_out] of each folded layer by module name, for weights that were merged before (what `gammas`
            returned); None reads the scales of the batch norms.

    Returns:
        The folded copy in eval mode, without trainable parameters.

    Raises:
        InlayError: If the network or the example is not fit, gammas are needed or do not fit, or the copy gives
            other outputs.
    """
    check_network(model)
    with buffers_kept(model):
        units = find_units(model, example).units
    folded = fold_units(model, units, gammas)
    check_same_outputs(model, folded, example)
    return folded.requires_grad_(False)


def fold_units(model: nn.Module, units: Sequence[Unit], gammas: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Copy a network in eval mode with the batch norms of the given units folded, without comparing outputs.

    Args:
        model: The network; it is not changed.
        units: Units of the network; those without a batch norm are left as they are.
        gammas: See `fold`.

    Raises:
        InlayError: If gammas are needed or do not fit.
    """
    folded = copied(model).eval()
    modules = dict(folded.named_modules())
    _check_gammas(modules, gammas or {})
    replacements: dict[str, nn.Module] = {}
    for unit in units:
        if unit.kind not in ("conv-bn", "linear-bn") or unit.norm is None:
            continue
        layer, norm = layer_of(modules, unit.name), modules[unit.norm]
        assert isinstance(norm, _BatchNorm)
        gamma = _given_gamma(unit, layer.weight.shape[0], gammas)
        if gamma is None:
            _refuse_identity(unit, norm)
        absorbed = replacements.setdefault(unit.norm, folded_norm(norm))
        assert isinstance(absorbed, FoldedNorm)
        replacements[unit.name] = fold_layer(layer, norm, absorbed, gamma)
    replace_modules(folded, replacements)
    return folded.eval()


def folded_layers(model: nn.Module) -> dict[str, Folded]:
    """Return the folded layers of a network by module name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Folded)}


def gammas(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the gamma [C_out] of every folded layer by module name, to keep beside plain weights."""
    return {name: layer.gamma.detach().clone() for name, layer in folded_layers(model).items()}


def check_same_outputs(original: nn.Module, folded: nn.Module, example: Example) -> None:
    """Refuse a folded network whose outputs differ from those of the original.

    Raises:
        InlayError: If they differ.
    """
    with buffers_kept(original, folded):
        expected = full_precision_outputs(original, example, "example")
        actual = full_precision_outputs(folded, example, "example")
    error = difference(expected, actual).relative
    allowed = tolerance_for(tensor.dtype for tensor in (*original.parameters(), *expected))
    if not error <= allowed:
        raise InlayError(
            f"The folded network differs from the original by {error:.1e} (relative; {allowed:.0e} is allowed): "
            f"check that its outputs are finite, that it is deterministic in eval mode, and that it reads no weight of "
            f"a layer or batch norm outside that module."
        )


def _check_gammas(modules: Mapping[str, nn.Module], gammas: Mapping[str, Tensor]) -> None:
    for name, gamma in gammas.items():
        if name not in modules:
            raise InlayError(
                f"gammas has an entry for {name!r}, but the network has no such layer; pass the gammas of this network."
            )
        if isinstance(modules[name], Folded):
            raise InlayError(
                f"Layer {name!r} is folded and holds its gamma; leave gammas out, as they belong to plain weights."
            )
        if not bool(torch.isfinite(gamma).all()):
            raise InlayError(f"The gamma of {name!r} is not finite; pass what inlay.branches.gammas returned.")


def _given_gamma(unit: Unit, channels: int, gammas: Mapping[str, Tensor] | None) -> Tensor | None:
    if gammas is None:
        return None
    if unit.name not in gammas:
        raise InlayError(f"gammas has no entry for {unit.name!r}; pass what inlay.branches.gammas returned.")
    if list(gammas[unit.name].shape) != [channels]:
        raise InlayError(
            f"The gamma of {unit.name!r} has shape {list(gammas[unit.name].shape)} instead of [{channels}]; pass the "
            f"gammas of this network."
        )
    return gammas[unit.name]


def _refuse_identity(unit: Unit, norm: _BatchNorm) -> None:
    """Refuse a batch norm that only adds a bias: it stands where one was merged, and its gamma is elsewhere."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None and variance is not None
    scale = torch.rsqrt(variance.double() + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    # In half precision the variance 1 − eps is stored as 1, as in a new batch norm, whose shift is zero.
    is_new = bool((variance == 1).all()) and not any(bool(part.any()) for part in (mean, norm.bias) if part is not None)
    if bool(((scale - 1).abs() < max(1e-7, torch.finfo(variance.dtype).eps)).all()) and not is_new:
        raise InlayError(
            f"Batch norm {unit.norm!r} only adds a bias, as after a merge, so its gamma is lost; pass the gammas that "
            f"were saved beside the weights: gammas=..."
        )
