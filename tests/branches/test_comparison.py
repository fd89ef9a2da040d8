import math

import pytest
import torch
from torch import Tensor, nn
from torch.backends import cudnn

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


@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_is_switched_off_inside_and_restored_after(allowed: bool) -> None:
    inside: list[bool] = []

    class Watching(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            inside.append(cudnn.conv.fp32_precision == "tf32")  # type: ignore[attr-defined]
            return values

    original = cudnn.allow_tf32
    try:
        cudnn.allow_tf32 = allowed
        full_precision_output(Watching(), torch.zeros(1))
        assert inside == [False]
        assert cudnn.allow_tf32 == allowed
    finally:
        cudnn.allow_tf32 = original


def test_networks_that_return_no_tensor_are_refused() -> None:
    class Wrapped(nn.Module):
        def forward(self, values: Tensor) -> dict[str, Tensor]:
            return {"features": values}

    with pytest.raises(InlayError, match="returned a dict"):
        full_precision_output(Wrapped(), torch.zeros(1, 2))
