import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.backends import cuda, cudnn

from inlay.branches.comparison import difference, full_precision_outputs
from inlay.errors import InlayError


def test_large_outputs_are_compared_relatively_and_small_ones_absolutely() -> None:
    large = difference([torch.tensor([[-8.0, 2.0]])], [torch.tensor([[-8.0, 4.0]])])
    assert (large.absolute, large.relative) == (2.0, 0.25)
    small = difference([torch.tensor([[0.25, 0.0]])], [torch.tensor([[0.25, 0.5]])])
    assert (small.absolute, small.relative) == (0.5, 0.5)


def test_each_tensor_has_its_own_scale_and_the_largest_difference_counts() -> None:
    expected = [torch.tensor([100.0, 1.0]), torch.tensor([0.5]), torch.empty(0, 3)]
    actual = [torch.tensor([100.0, 3.0]), torch.tensor([1.5]), torch.empty(0, 3)]
    found = difference(expected, actual)
    assert (found.absolute, found.relative) == (2.0, 1.0)


def test_equal_outputs_do_not_differ() -> None:
    found = difference([torch.tensor([1e30, -2.0])], [torch.tensor([1e30, -2.0])])
    assert (found.absolute, found.relative) == (0.0, 0.0)


def test_differences_too_small_for_float32_are_seen() -> None:
    found = difference([torch.zeros(1, dtype=torch.float64)], [torch.full((1,), 1e-60, dtype=torch.float64)])
    assert found.absolute == 1e-60


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_not_hidden(order: list[int], value: float) -> None:
    expected = [torch.tensor([1.0, 2.0]), torch.tensor([value, 9.0])]
    actual = [torch.tensor([1.0, 2.5]), torch.tensor([value, 8.0])]
    found = difference([expected[index] for index in order], [actual[index] for index in order])
    assert math.isnan(found.relative)
    assert math.isnan(found.absolute)


def test_other_shapes_and_numbers_of_outputs_are_refused() -> None:
    with pytest.raises(ValueError, match="do not compare"):
        difference([torch.zeros(2, 1)], [torch.zeros(1, 2)])
    with pytest.raises(ValueError, match="argument 2 is longer"):
        difference([torch.zeros(1)], [torch.zeros(1), torch.zeros(1)])


def test_autocast_around_the_caller_is_switched_off() -> None:
    layer = nn.Linear(4, 4)
    values = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(values).dtype == torch.bfloat16
        (output,) = full_precision_outputs(layer, values, "example")
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
        full_precision_outputs(Watching(), torch.zeros(1), "example")
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
        full_precision_outputs(nn.Identity(), torch.zeros(1), "example")
        assert cudnn.allow_tf32 == (precision == "high")
        assert torch.get_float32_matmul_precision() == precision
    finally:
        cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)


def test_all_floating_outputs_come_back_in_order() -> None:
    @dataclass
    class Output:
        classes: Tensor
        scores: Tensor
        hidden: list[Tensor]

    class Wrapped(nn.Module):
        def forward(self, values: Tensor, scale: float) -> Output:
            return Output(values.argmax(1), values, [values * scale])

    found = full_precision_outputs(Wrapped(), (torch.ones(1, 2), 3.0), "example")
    assert [tensor.tolist() for tensor in found] == [[[1.0, 1.0]], [[3.0, 3.0]]]


def test_networks_that_return_no_floating_tensor_are_refused() -> None:
    class Wrapped(nn.Module):
        def forward(self, values: Tensor) -> dict[str, Tensor]:
            return {"classes": values.argmax(1)}

    with pytest.raises(InlayError, match="returns a dict without any floating tensor"):
        full_precision_outputs(Wrapped(), torch.zeros(1, 2), "example")


def test_a_probe_of_the_wrong_shape_is_named_as_such() -> None:
    with pytest.raises(InlayError, match=r"^The network fails on the probe \(float32 \[1, 3\]\)"):
        full_precision_outputs(nn.Linear(2, 2), torch.zeros(1, 3), "probe")


def test_weights_need_no_gradients_meanwhile() -> None:
    class Telling(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            asked.append(self.weight.requires_grad)
            return super().forward(input)

    asked: list[bool] = []
    layer = Telling(2, 2)
    layer.get_parameter("bias").requires_grad_(False)
    full_precision_outputs(layer, torch.zeros(1, 2), "example")
    with pytest.raises(InlayError):
        full_precision_outputs(layer, torch.zeros(1, 3), "example")
    assert asked == [False, False]
    assert [parameter.requires_grad for parameter in layer.parameters()] == [True, False]
