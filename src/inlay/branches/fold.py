"""Folding each convolution and its batch norm into one convolution."""

import copy

import torch
from torch import Tensor, nn

from inlay.branches.comparison import difference, full_precision_output
from inlay.branches.folded import FoldedConv, fused_kernel
from inlay.branches.pairs import Pair, find_pairs
from inlay.branches.surgery import replace_modules
from inlay.branches.unit import HybridConv
from inlay.errors import InlayError

__all__ = ["fold", "fold_unchecked"]

_TOLERANCE = 1e-4
_TOLERANCE_FLOAT64 = 1e-10


def fold(model: nn.Module, example: Tensor) -> nn.Module:
    """Copy a network with each Conv2d and the BatchNorm2d behind it folded into one frozen convolution.

    Pairs are found by running the example once and following the tensors, not by module names. Module names
    are kept: a FoldedConv takes the place of each convolution and an identity that of its batch norm.

    Args:
        model: Trained network that returns one tensor; it is not changed.
        example: A batch of images the network accepts, [N, C, H, W].

    Returns:
        The folded copy in eval mode, without trainable parameters.

    Raises:
        InlayError: If no pair is found, a pair cannot be folded, or the copy gives other outputs.
    """
    original = copy.deepcopy(model).eval()
    expected = full_precision_output(original, example)
    folded = fold_unchecked(original, example)
    error = difference(expected, full_precision_output(folded, example)).relative
    tolerance = _TOLERANCE_FLOAT64 if expected.dtype == torch.float64 else _TOLERANCE
    if not error <= tolerance:
        raise InlayError(
            f"The folded network differs from the original by {error:.1e} (relative; {tolerance:.0e} is "
            f"allowed): check that its outputs are finite, that it is deterministic in eval mode, and that "
            f"it reads no weight of a convolution or batch norm outside that module."
        )
    return folded


def fold_unchecked(model: nn.Module, example: Tensor) -> nn.Module:
    """Fold a copy of a network without comparing outputs, whatever its weights hold.

    Args:
        model: Network to fold; it is not changed.
        example: A batch of images the network accepts, [N, C, H, W].

    Raises:
        InlayError: If no pair is found or a pair cannot be folded.
    """
    if any(isinstance(module, HybridConv) for module in model.modules()):
        raise InlayError("The network has branches attached; merge them with inlay.branches.merge, not fold.")
    folded = copy.deepcopy(model).eval()
    pairs = find_pairs(folded, example)
    if not pairs:
        raise InlayError(_nothing_to_fold(folded))
    replacements: dict[str, nn.Module] = {}
    for pair in pairs:
        replacements[pair.conv] = _folded_conv(folded, pair)
        replacements[pair.norm] = nn.Identity()
    replace_modules(folded, replacements)
    return folded.eval().requires_grad_(False)


def _folded_conv(model: nn.Module, pair: Pair) -> FoldedConv:
    conv, norm = model.get_submodule(pair.conv), model.get_submodule(pair.norm)
    if not isinstance(conv, nn.Conv2d) or not isinstance(norm, nn.BatchNorm2d):
        raise TypeError(f"{pair} is not a convolution and a batch norm")
    weight, bias = fused_kernel(conv, norm)
    return FoldedConv(conv, weight, bias, norm.weight)


def _nothing_to_fold(model: nn.Module) -> str:
    if any(isinstance(module, FoldedConv) for module in model.modules()):
        return "The network is folded already; pass it to inlay.branches.attach as it is."
    return (
        "The network has no torch.nn.Conv2d whose output goes straight into a torch.nn.BatchNorm2d; use a "
        "backbone built of such pairs, for example inlay.backbones.build('resnet18')."
    )
