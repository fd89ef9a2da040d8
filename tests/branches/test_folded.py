import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from inlay.branches.folded import Folded, FoldedNorm, fold_layer, folded_norm, fused_kernel, has_activation
from inlay.branches.layers import Layer

LAYERS: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "conv1d": (lambda **k: nn.Conv1d(2, 4, 3, stride=2, **k), nn.BatchNorm1d, (3, 2, 9)),
    "conv2d": (lambda **k: nn.Conv2d(2, 4, (3, 1), padding=(1, 0), **k), nn.BatchNorm2d, (3, 2, 6, 5)),
    "conv3d": (lambda **k: nn.Conv3d(2, 4, 2, **k), nn.BatchNorm3d, (2, 2, 3, 4, 3)),
    "linear": (lambda **k: nn.Linear(5, 4, **k), nn.BatchNorm1d, (6, 5)),
    "grouped": (lambda **k: nn.Conv2d(4, 4, 3, groups=2, **k), nn.BatchNorm2d, (2, 4, 5, 5)),
    "depthwise": (lambda **k: nn.Conv2d(4, 4, 3, groups=4, **k), nn.BatchNorm2d, (2, 4, 5, 5)),
    "dilated": (lambda **k: nn.Conv2d(2, 4, 3, dilation=2, padding=2, **k), nn.BatchNorm2d, (2, 2, 5, 5)),
    "reflect": (lambda **k: nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect", **k), nn.BatchNorm2d, (2, 2, 5, 5)),
    "replicate": (lambda **k: nn.Conv1d(2, 4, 3, padding=1, padding_mode="replicate", **k), nn.BatchNorm1d, (2, 2, 5)),
    "circular": (
        lambda **k: nn.Conv3d(2, 4, 3, padding="same", padding_mode="circular", **k),
        nn.BatchNorm3d,
        (2, 2, 3, 3, 4),
    ),
}
every_layer = pytest.mark.parametrize("kind", LAYERS)
with_and_without_bias = pytest.mark.parametrize("bias", [False, True])


def _pair(kind: str, bias: bool = True, affine: bool = True) -> tuple[Layer, _BatchNorm, Tensor]:
    generator = torch.Generator().manual_seed(0)
    make, norm_class, shape = LAYERS[kind]
    layer: Layer = make(bias=bias, dtype=torch.float64)
    norm: _BatchNorm = norm_class(4, eps=1e-3, affine=affine, dtype=torch.float64)
    assert norm.running_mean is not None and norm.running_var is not None
    with torch.no_grad():
        for tensor in [*layer.parameters(), *norm.parameters(), norm.running_mean]:
            tensor.normal_(generator=generator)
        norm.running_var.uniform_(0.1, 3, generator=generator)
    return layer, norm.eval(), torch.randn(shape, dtype=torch.float64, generator=generator)


def _folded(layer: Layer, norm: _BatchNorm, gamma: Tensor | None = None) -> Folded:
    return fold_layer(layer, norm, folded_norm(norm), gamma)


@every_layer
@with_and_without_bias
@pytest.mark.parametrize("affine", [False, True])
def test_fused_kernel_against_loops(kind: str, bias: bool, affine: bool) -> None:
    layer, norm, _ = _pair(kind, bias, affine)
    weight, shift = fused_kernel(layer, norm)
    assert norm.running_mean is not None and norm.running_var is not None
    for c in range(4):
        factor = (norm.weight[c].item() if affine else 1.0) / math.sqrt(norm.running_var[c].item() + 1e-3)
        own = layer.bias[c].item() if layer.bias is not None else 0.0
        expected = (norm.bias[c].item() if affine else 0.0) + (own - norm.running_mean[c].item()) * factor
        assert shift[c].item() == pytest.approx(expected, abs=1e-13)
        for fused, value in zip(weight[c].flatten().tolist(), layer.weight[c].flatten().tolist(), strict=True):
            assert fused == pytest.approx(value * factor, abs=1e-13)


@every_layer
@with_and_without_bias
@pytest.mark.parametrize("affine", [False, True])
def test_a_folded_layer_equals_the_layer_and_its_norm(kind: str, bias: bool, affine: bool) -> None:
    layer, norm, inputs = _pair(kind, bias, affine)
    folded = _folded(layer, norm)
    assert torch.allclose(folded(inputs), norm(layer(inputs)), rtol=0, atol=1e-12)
    assert isinstance(folded, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear))
    assert folded.had_bias == bias
    assert torch.equal(folded.gamma, norm.weight if affine else torch.ones(4, dtype=torch.float64))
    assert not any(parameter.requires_grad for parameter in folded.parameters())


def test_a_norm_with_scale_and_without_shift_is_folded() -> None:
    layer, norm, inputs = _pair("conv2d")
    norm.register_parameter("bias", None)
    folded = _folded(layer, norm)
    assert torch.allclose(folded(inputs), norm(layer(inputs)), rtol=0, atol=1e-12)
    assert (folded.absorbed.affine, folded.absorbed.shift) == (True, False)


def test_the_gamma_that_is_given_is_kept() -> None:
    layer, norm, _ = _pair("conv2d")
    gamma = torch.tensor([0.5, -2.0, 3.0, 1.0])
    folded = _folded(layer, norm, gamma)
    assert torch.equal(folded.gamma, gamma.double())
    assert torch.equal(folded.get_parameter("weight"), _folded(layer, norm).get_parameter("weight"))
    with pytest.raises(ValueError, match="expected shape"):
        _folded(layer, norm, gamma[:3])


def test_a_norm_without_statistics_is_refused() -> None:
    with pytest.raises(ValueError, match="no running statistics"):
        fused_kernel(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, track_running_stats=False))


def test_a_folded_layer_shares_no_memory_and_draws_no_random_numbers() -> None:
    layer, norm, inputs = _pair("conv2d")
    state = torch.get_rng_state()
    folded = _folded(layer, norm)
    assert torch.equal(state, torch.get_rng_state())
    before = folded(inputs)
    with torch.no_grad():
        for parameter in [*layer.parameters(), *norm.parameters()]:
            parameter.zero_()
    assert torch.equal(folded(inputs), before)
    assert folded.gamma.abs().min() > 0


def test_dtype_and_memory_format_are_those_of_the_layer() -> None:
    conv = nn.Conv2d(3, 4, 3, bias=False, dtype=torch.bfloat16)
    conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    folded = _folded(conv, nn.BatchNorm2d(4))
    weight, bias = folded.get_parameter("weight"), folded.get_parameter("bias")
    assert weight.dtype == bias.dtype == folded.gamma.dtype == torch.bfloat16
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_a_subclass_with_the_forward_of_its_parent_becomes_the_plain_folded_layer() -> None:
    class Named(nn.Conv2d):
        """A convolution with another name."""

    folded = _folded(Named(2, 4, 1), nn.BatchNorm2d(4))
    assert type(folded).__name__ == "FoldedConv2d"


def test_what_stands_for_the_norm_remembers_what_the_norm_stored() -> None:
    norm = nn.BatchNorm2d(3, eps=0.25, affine=False)
    norm(torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)))
    stand_in = folded_norm(norm)
    assert (stand_in.channels, stand_in.eps, stand_in.affine, stand_in.shift) == (3, 0.25, False, False)
    assert stand_in.batches == 1
    inputs = torch.ones(1, 3, 2, 2)
    assert stand_in(inputs) is inputs
    norm.num_batches_tracked = None
    assert folded_norm(norm).batches is None


def test_a_copy_absorbs_into_what_stands_in_the_copy() -> None:
    layer, norm, _ = _pair("conv2d")
    stand_in = folded_norm(norm)
    network = nn.Sequential(fold_layer(layer, norm, stand_in), stand_in)
    assert set(network.state_dict()) == {"0.weight", "0.bias", "0.gamma"}
    clone = copy.deepcopy(network)
    assert isinstance(clone[0], Folded) and isinstance(clone[1], FoldedNorm)
    assert clone[0].absorbed is clone[1] is not stand_in


class BatchNormAct2d(nn.BatchNorm2d):
    """A batch norm that holds the activation behind it, as in timm."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, dtype=torch.float64)
        self.drop, self.act = nn.Identity(), nn.LeakyReLU(0.3)

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = self.act(self.drop(super().forward(input)))
        return out


def test_the_activation_inside_a_norm_lives_on() -> None:
    layer, plain, inputs = _pair("conv2d")
    norm = BatchNormAct2d(4)
    norm.load_state_dict(plain.state_dict())
    assert has_activation(norm) and not has_activation(plain)
    stand_in = folded_norm(norm.eval())
    network = nn.Sequential(fold_layer(layer, norm, stand_in), stand_in)
    assert torch.allclose(network(inputs), norm(layer(inputs)), rtol=0, atol=1e-12)
    assert (network(inputs) < 0).any()
