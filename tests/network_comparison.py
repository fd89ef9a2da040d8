"""What two networks have in common: outputs and structure."""

import math

import torch
from torch import Tensor, nn

from inlay.branches.example import floating_outputs


@torch.no_grad()
def outputs(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Return every floating tensor that a network in eval mode returns."""
    assert not model.training
    return floating_outputs(model(images))


def same(expected: list[Tensor], actual: list[Tensor]) -> bool:
    """Say whether outputs are equal in every value."""
    return all(torch.equal(*pair) for pair in zip(expected, actual, strict=True))


def gap(expected: list[Tensor], actual: list[Tensor]) -> float:
    """Return the largest max |Δ| / max(1, max |expected|) of all outputs."""
    gaps = [
        ((left - right).abs().max() / left.abs().max().clamp(min=1)).item()
        for left, right in zip(expected, actual, strict=True)
    ]
    assert not any(map(math.isnan, gaps))
    return max(gaps)


def structure(model: nn.Module) -> list[tuple[str, type[nn.Module], list[tuple[str, torch.Size, torch.dtype]]]]:
    """Return the name and type of every module, and the names, shapes and types of its tensors."""
    found = []
    for name, module in model.named_modules(remove_duplicate=False):
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        found.append((name, type(module), [(key, tensor.shape, tensor.dtype) for key, tensor in tensors]))
    return found
