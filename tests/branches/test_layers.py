import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inlay.branches.layers import Layer, applied_with, channel_view, like, row_norms, stored_like

GEOMETRIES: dict[str, Layer] = {
    "linear": nn.Linear(4, 6),
    "conv1d": nn.Conv1d(4, 6, 3, stride=2, padding=1),
    "dilated": nn.Conv2d(4, 6, 3, padding=2, dilation=2, padding_mode="reflect", bias=False),
    "grouped": nn.Conv2d(4, 6, (3, 5), padding=(1, 2), groups=2, padding_mode="circular"),
    "depthwise": nn.Conv2d(4, 4, 3, padding="same", groups=4, bias=False),
    "conv3d": nn.Conv3d(4, 2, 3, padding=1, stride=(1, 2, 1), padding_mode="replicate"),
}


def _values(layer: Layer) -> Tensor:
    shape = [2, 4] if isinstance(layer, nn.Linear) else [2, 4, *[6] * len(layer.kernel_size)]
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_values_multiply_the_channels_of_their_side() -> None:
    weight = torch.randn(3, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    out, inner = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 7.0])
    by_out, by_in = weight * channel_view(out, weight), weight * channel_view(inner, weight, "in")
    for row in range(3):
        for column in range(2):
            assert torch.equal(by_out[row, column], weight[row, column] * out[row])
            assert torch.equal(by_in[row, column], weight[row, column] * inner[column])


@pytest.mark.parametrize("layer", GEOMETRIES.values(), ids=GEOMETRIES)
def test_a_layer_is_applied_with_another_weight(layer: Layer) -> None:
    weight, bias = torch.full_like(layer.weight, 0.5), torch.arange(layer.weight.shape[0]).float()
    twin = like(layer, pointwise=False, bias=True)
    twin.load_state_dict({"weight": weight, "bias": bias})
    assert torch.equal(applied_with(layer, _values(layer), weight, bias), twin(_values(layer)))
    assert torch.equal(applied_with(layer, _values(layer), layer.weight, layer.bias), layer(_values(layer)))


@pytest.mark.parametrize("layer", GEOMETRIES.values(), ids=GEOMETRIES)
@pytest.mark.parametrize("bias", [True, False])
def test_a_twin_has_the_same_geometry_and_computes_the_same(layer: Layer, bias: bool) -> None:
    twin = like(layer, pointwise=False, bias=bias)
    assert type(twin) is type(layer)
    assert (twin.bias is not None) == bias
    assert all(parameter.requires_grad for parameter in twin.parameters())
    twin.load_state_dict({"weight": layer.weight} | ({"bias": torch.zeros(layer.weight.shape[0])} if bias else {}))
    assert torch.equal(twin(_values(layer)), applied_with(layer, _values(layer), layer.weight, None))


@pytest.mark.parametrize("layer", GEOMETRIES.values(), ids=GEOMETRIES)
def test_a_pointwise_twin_sees_the_centre_of_the_kernel(layer: Layer) -> None:
    twin = like(layer, pointwise=True, bias=False)
    kernel = torch.randn(twin.weight.shape, generator=torch.Generator().manual_seed(1))
    assert kernel[0].numel() == layer.weight.shape[1]
    twin.load_state_dict({"weight": kernel})
    middle: Any = (..., *(size // 2 for size in layer.weight.shape[2:]))
    whole = torch.zeros_like(layer.weight)
    whole[middle] = kernel.flatten(1)
    expected = applied_with(layer, _values(layer), whole, None)
    assert torch.allclose(twin(_values(layer)), expected, atol=1e-6)


def test_a_twin_takes_over_dtype_and_memory_format_and_draws_nothing() -> None:
    layer = nn.Conv2d(4, 6, 3, padding=1, dtype=torch.float64)
    layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)
    state = torch.random.get_rng_state()
    for pointwise in (True, False):
        twin = like(layer, pointwise=pointwise, bias=True)
        assert twin.weight.dtype == twin.get_parameter("bias").dtype == torch.float64
        assert twin.weight.is_contiguous(memory_format=torch.channels_last)
        assert twin.weight.device == twin.get_parameter("bias").device == layer.weight.device
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_twin_of_a_derived_layer_is_plain() -> None:
    class Narrow(nn.Conv2d):
        def __init__(self, channels: int) -> None:
            super().__init__(channels, channels, 1)

    assert type(like(Narrow(4), pointwise=False, bias=True)) is nn.Conv2d


def test_row_norms_are_relative_to_their_mean() -> None:
    weight = torch.randn(5, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    norms = [math.sqrt(sum(value**2 for value in row.flatten().tolist())) for row in weight]
    expected = torch.tensor([norm / (sum(norms) / len(norms)) for norm in norms])
    assert torch.allclose(row_norms(weight), expected)
    assert torch.allclose(row_norms(weight * 100), expected)
    assert not row_norms(weight.requires_grad_()).requires_grad
    assert row_norms(weight.half()).dtype == torch.float16


def test_row_norms_of_zeros_are_zeros() -> None:
    assert torch.equal(row_norms(torch.zeros(3, 2)), torch.zeros(3))


def test_values_are_stored_as_a_copy_like_the_reference() -> None:
    reference = torch.zeros(2, 3, 4, 4, dtype=torch.float16).to(memory_format=torch.channels_last).requires_grad_()
    values = torch.ones(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    stored = stored_like(values, reference)
    assert (stored.dtype, stored.requires_grad) == (torch.float16, False)
    assert stored.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(stored.double(), values)
    again = stored_like(stored, stored)
    again.zero_()
    assert torch.equal(stored.double(), values)


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected shape \[3\], got \[1\]"):
        stored_like(torch.ones(1), torch.ones(3))
