"""Comparing what two networks give for the same images."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.backends import cuda, cudnn

from inlay.branches.example import Example, floating_outputs, run, tensors_in

__all__ = ["Difference", "difference", "full_precision_outputs"]


@dataclass(frozen=True)
class Difference:
    """How far two outputs lie apart.

    Attributes:
        absolute: max |Δ|.
        relative: max |Δ| / max(1, max |expected|), the largest over all tensors returned.
    """

    absolute: float
    relative: float


def difference(expected: Sequence[Tensor], actual: Sequence[Tensor]) -> Difference:
    """Measure how far the tensors that a network returned lie from those expected; NaN anywhere gives NaN."""
    absolute, relative = [0.0], [0.0]
    for left, right in zip(expected, actual, strict=True):
        if left.shape != right.shape:
            raise ValueError(f"outputs of shapes {list(left.shape)} and {list(right.shape)} do not compare")
        if left.numel():
            gap = (left - right).abs().max()
            absolute.append(gap.item())
            relative.append((gap / left.abs().max().clamp(min=1.0)).item())
    # torch's maximum is NaN if any value is; Python's depends on the order.
    largest = torch.tensor([absolute, relative], dtype=torch.float64).amax(dim=1)
    return Difference(largest[0].item(), largest[1].item())


def full_precision_outputs(model: nn.Module, example: Example, role: str) -> list[Tensor]:
    """Run a network in its own precision, without gradients, autocast or TF32, and return its floating outputs.

    Args:
        model: Network in eval mode.
        example: What it is given.
        role: What the example is called in an error message.

    Raises:
        InlayError: If the network fails on the example or returns no floating tensor.
    """
    device = next(tensors_in(example), torch.empty(0)).device.type
    with torch.no_grad(), _needing_no_gradients(model), torch.autocast(device, enabled=False), _without_tf32():
        return floating_outputs(run(model, example, role))


@contextmanager
def _needing_no_gradients(model: nn.Module) -> Iterator[None]:
    """Some kernels round otherwise for weights that need gradients, even where none are taken."""
    needing = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in needing:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in needing:
            parameter.requires_grad_(True)


@contextmanager
def _without_tf32() -> Iterator[None]:
    convolutions = cudnn.conv  # type: ignore[attr-defined]  # set when torch.backends.cudnn is imported
    operations = (convolutions, cuda.matmul)
    precisions = [operation.fp32_precision for operation in operations]
    try:
        for operation in operations:
            operation.fp32_precision = "ieee"
        yield
    finally:
        for operation, precision in zip(operations, precisions, strict=True):
            operation.fp32_precision = precision
