"""Comparing what two networks give for the same images."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.backends import cuda, cudnn

from inlay.errors import InlayError

__all__ = ["Difference", "difference", "full_precision_output"]


@dataclass(frozen=True)
class Difference:
    """How far two outputs lie apart.

    Attributes:
        absolute: max |Δ|.
        relative: max |Δ| / max(1, max |expected|).
    """

    absolute: float
    relative: float


def difference(expected: Tensor, actual: Tensor) -> Difference:
    """Measure how far an output lies from the expected one; NaN anywhere gives NaN."""
    if expected.shape != actual.shape:
        raise ValueError(f"outputs of shapes {list(expected.shape)} and {list(actual.shape)} do not compare")
    absolute = (expected - actual).abs().max()
    magnitude = expected.abs().max().clamp(min=1.0)
    return Difference(absolute.item(), (absolute / magnitude).item())


def full_precision_output(model: nn.Module, images: Tensor) -> Tensor:
    """Run a network in its own precision, without gradients, autocast or TF32.

    Args:
        model: Network in eval mode.
        images: A batch, [N, C, H, W].

    Raises:
        InlayError: If the network does not return one tensor.
    """
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False), _without_tf32():
        output: object = model(images)
    if not isinstance(output, Tensor):
        raise InlayError(
            f"The network must return one tensor, but returned a {type(output).__name__}; wrap it in a "
            f"module that returns only the features."
        )
    return output


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
