"""Folded and merged networks as weights of the stock architecture that they came from."""

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from inlay.branches.fold import folded_layers, gammas
from inlay.branches.folded import Folded, FoldedNorm
from inlay.branches.hybrid import is_hybrid
from inlay.branches.surgery import replace_modules
from inlay.engine.checkpoint import read_tensors, write_tensors
from inlay.errors import InlayError

__all__ = ["load_gammas", "save_stock", "stock_state_dict"]

_WEIGHTS, _GAMMAS = ".safetensors", ".gammas.safetensors"


def stock_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the weights of a folded or merged network under the names and shapes of its stock architecture.

    Each absorbed batch norm becomes one with scale 1. The bias of a folded layer goes into the layer's own bias where
    the stock layer has one, else into the shift of the batch norm. The stock network then computes the same function
    and loads the weights with `strict=True`. Gammas have no place there: keep what `gammas` returns beside the
    weights, and give them to `attach` or `fold`, which then find the same weights again bit for bit, or with a bias off
    in its last bits where layers with and without bias share a batch norm. In half precision the scale is 1 up to
    rounding, and `fold` cannot tell such a batch norm from a new one if it adds nothing.

    Args:
        model: Network from `fold` or `merge`, or one that holds such a network; it is not changed.

    Raises:
        InlayError: If the network has branches, layers that share a batch norm have different biases and no bias of
            their own, or the network lacks a batch norm that was folded.
    """
    if is_hybrid(model):
        raise InlayError("The network has branches; merge them with inlay.branches.merge first.")
    stock = copy.deepcopy(model)
    users = _layers_by_norm(stock)
    norms: dict[str, nn.Module] = {}
    for name, module in stock.named_modules():
        if isinstance(module, FoldedNorm):
            layers = users.get(name, {})
            shift = _shift(name, module, layers)
            norms[name] = _identity(module, shift)
            for layer in layers.values():
                _unfold(layer, shift)
    replace_modules(stock, norms)
    return stock.state_dict()


def save_stock(model: nn.Module, path: str | Path) -> None:
    """Write the weights of `stock_state_dict`, and the gammas beside them as `<stem>.gammas.safetensors`.

    Args:
        model: Network from `fold` or `merge`; it is not changed.
        path: File of the weights, which ends in .safetensors; both files are replaced if they exist.

    Raises:
        InlayError: If the network has no such weights, the name ends otherwise, or a file cannot be written.
    """
    target = Path(path)
    if target.suffix != _WEIGHTS or target.name.endswith(_GAMMAS):
        raise InlayError(f"The weights cannot be written to {target}; give a name such as model{_WEIGHTS}.")
    weights = stock_state_dict(model)
    write_tensors(_gammas_path(target), gammas(model), {})
    write_tensors(target, weights, {})


def load_gammas(path: str | Path) -> dict[str, Tensor]:
    """Read the gammas that `save_stock` wrote, for `attach` or `fold`.

    Args:
        path: File of the weights, as it was given to `save_stock`, or the file of the gammas itself.

    Raises:
        InlayError: If the file of the gammas is missing or damaged.
    """
    return read_tensors(_gammas_path(Path(path)))[0]


def _gammas_path(path: Path) -> Path:
    return path if path.name.endswith(_GAMMAS) else path.with_name(path.stem + _GAMMAS)


def _layers_by_norm(model: nn.Module) -> dict[str, dict[str, Folded]]:
    """Return, by the name of what stands for a batch norm, the layers that absorbed it."""
    names = {id(module): name for name, module in model.named_modules()}
    users: dict[str, dict[str, Folded]] = {}
    for name, layer in folded_layers(model).items():
        norm = names.get(id(layer.absorbed))
        if norm is None:
            raise InlayError(
                f"The batch norm that {name!r} absorbed is not in this network; pass the whole network that was folded."
            )
        users.setdefault(norm, {})[name] = layer
    return users


def _shift(name: str, norm: FoldedNorm, layers: Mapping[str, Folded]) -> Tensor:
    """Return what the batch norm must add [C]: the bias of the layers that have no place for it."""
    biases = {layer: folded.get_parameter("bias").detach() for layer, folded in layers.items()}
    homeless = [layer for layer, folded in layers.items() if not folded.had_bias]
    if not homeless:
        return torch.zeros_like(next(iter(biases.values()))) if biases else torch.zeros(norm.channels)
    if not all(torch.equal(biases[homeless[0]], biases[layer]) for layer in homeless):
        raise InlayError(
            f"The layers {', '.join(map(repr, homeless))} share the batch norm {name!r} and have no bias of their own, "
            f"so the stock network has no place for their different biases; keep the folded network, or build and "
            f"train these layers with bias=True."
        )
    return biases[homeless[0]].clone()


def _identity(folded: FoldedNorm, shift: Tensor) -> nn.Module:
    """Return a batch norm that only adds the shift [C] in eval mode, with what the folded one still holds."""
    norm = nn.BatchNorm1d(folded.channels, eps=folded.eps, affine=folded.affine, device=shift.device, dtype=shift.dtype)
    assert norm.running_mean is not None and norm.running_var is not None
    # A variance of exactly 1 is the mark of a new batch norm; half precision cannot come as close to 1 as this.
    step = min(torch.finfo(shift.dtype).eps, torch.finfo(torch.float32).eps) / 2
    norm.running_var.fill_(1.0 - max(folded.eps, step))
    if folded.shift:
        norm.bias.data.copy_(shift)
    else:
        norm.running_mean.copy_(-shift)
        norm.register_parameter("bias", None)
    if folded.batches is None:
        norm.num_batches_tracked = None
    else:
        norm.num_batches_tracked = torch.tensor(folded.batches, device=shift.device)
    for name, child in folded.named_children():
        norm.add_module(name, child)
    return norm


def _unfold(layer: Folded, shift: Tensor) -> None:
    """Take the shift [C] of the batch norm off a layer in place, and the gamma with it."""
    del layer.gamma
    bias = layer.get_parameter("bias").detach()
    own = (bias.double() - shift.double()).to(bias.dtype)
    layer.register_parameter("bias", nn.Parameter(own, requires_grad=False) if layer.had_bias else None)
