import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.backends import cuda, cudnn

from inlay.branches.comparison import difference, full_precision_output
from inlay.errors import InlayError


def test_large_outputs_are_compared_relatively_and_small_ones_absolutely() -> None:
    large = difference(torch.tensor([[-8.0, 2.0]]), torch.tensor([[-8.0, 4.0]]))
    assert (large.absolute, large.relative) == (2.0, 0.25)
    small = difference(torch.tensor([[0.25, 0.0]]), torch.tensor([[0.25, 0.5]]))
    assert (small.absolute, small.relative) == (0.5, 0.5)


def test_nan_is_not_hidden() -> None:
    found = difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, math.nan]))
    assert math.isnan(found.relative)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="do not compare"):
        difference(torch.zeros(2, 1), torch.zeros(1, 2))


def test_autocast_around_the_caller_is_switched_off() -> None:
    layer = nn.Linear(4, 4)
    values = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(values).dtype == torch.bfloat16
        output = full_precision_output(layer, values)
    assert output.dtype == torch.float32
    assert not output.requires_grad


@pytest.mark.parametrize("operation", [cudnn.conv, cuda.matmul], ids=["convolution", "product"])  # type: ignore[attr-defined]
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_tf32_is_switched_off_inside_and_restored_after(operation: Any, precision: str) -> None:
    inside: list[str] = []

    class Watching(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            inside.append(operation.fp32_precision)
            return values

    original = operation.fp32_precision
    try:
        operation.fp32_precision = precision
        full_precision_output(Watching(), torch.zeros(1))
        assert inside == ["ieee"]
        assert operation.fp32_precision == precision
    finally:
        operation.fp32_precision = original


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_the_older_switches_for_tf32_still_answer_after(precision: str) -> None:
    convolutions, products = cudnn.allow_tf32, torch.get_float32_matmul_precision()
    try:
        cudnn.allow_tf32 = precision == "high"
        torch.set_float32_matmul_precision(precision)
        full_precision_output(nn.Identity(), torch.zeros(1))
        assert cudnn.allow_tf32 == (precision == "high")
        assert torch.get_float32_matmul_precision() == precision
    finally:
        cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)


def test_networks_that_return_no_tensor_are_refused() -> None:
    class Wrapped(nn.Module):
        def forward(self, values: Tensor) -> dict[str, Tensor]:
            return {"features": values}

    with pytest.raises(InlayError, match="returned a dict"):
        full_precision_output(Wrapped(), torch.zeros(1, 2))
