import copy
import functools
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hybrid_cases import BASES, every_base, every_gate, every_unit, lively, unit_on
from inlay.branches import gate
from inlay.branches.gates import Gate
from inlay.branches.hybrid import HybridUnit
from inlay.branches.layers import Layer, applied_with, row_norms


def _slow_layer(layer: Layer, inputs: Tensor) -> Tensor:
    """Apply a layer with zero padding by loops over batch, channels, positions and offsets."""
    weight = layer.weight.detach()
    bias = [0.0] * len(weight) if layer.bias is None else layer.bias.tolist()
    if isinstance(layer, nn.Linear):
        rows = [
            [bias[c] + sum(w * x for w, x in zip(weight[c].tolist(), row, strict=True)) for c in range(len(weight))]
            for row in inputs.flatten(0, -2).tolist()
        ]
        return torch.tensor(rows, dtype=inputs.dtype).view(*inputs.shape[:-1], len(weight))
    assert not isinstance(layer.padding, str)
    axes = list(zip(inputs.shape[2:], layer.kernel_size, layer.stride, layer.padding, layer.dilation, strict=True))
    sizes = [(size + 2 * pad - step * (kernel - 1) - 1) // stride + 1 for size, kernel, stride, pad, step in axes]
    out = torch.empty(len(inputs), len(weight), *sizes, dtype=inputs.dtype)
    per_group = len(weight) // layer.groups
    for n, c, *position in itertools.product(range(len(inputs)), range(len(weight)), *map(range, sizes)):
        total = bias[c]
        first = c // per_group * weight.shape[1]
        for i, *offset in itertools.product(range(weight.shape[1]), *map(range, layer.kernel_size)):
            places = [
                p * stride - pad + o * step
                for p, o, (_, _, stride, pad, step) in zip(position, offset, axes, strict=True)
            ]
            if all(0 <= place < size for place, (size, *_) in zip(places, axes, strict=True)):
                total += weight[(c, i, *offset)].item() * inputs[(n, first + i, *places)].item()
        out[(n, c, *position)] = total
    return out


@functools.cache
def _slow_outputs(kind: str) -> tuple[Tensor, Tensor]:
    """Apply base and novel layer by loops; the gate of a unit has no part in its values."""
    unit, inputs = unit_on(kind, gate("imm"))
    return _slow_layer(unit.base, inputs), _slow_layer(unit.novel, inputs)


def _slow_norm(norm: Any, values: Tensor, training: bool) -> Tensor:
    out = torch.empty_like(values)
    for c in range(values.shape[1]):
        found = values[:, c].flatten().tolist()
        mean, variance = norm.running_mean[c].item(), norm.running_var[c].item()
        if training:
            mean = sum(found) / len(found)
            variance = sum((value - mean) ** 2 for value in found) / len(found)
        factor = norm.weight[c].item() / math.sqrt(variance + norm.eps)
        normed = [(value - mean) * factor + norm.bias[c].item() for value in found]
        out[:, c] = torch.tensor(normed, dtype=values.dtype).view_as(values[:, c])
    return out


def _slow_scale(chosen: Gate, gamma: float, channel: int) -> float:
    if chosen == gate("amm"):
        return 1 / (1 + math.exp(gamma))
    if chosen == gate("amm", absolute=True):
        return 1 / (1 + math.exp(abs(gamma)))
    return {"imm": 1.0, "constant": -0.7, "ramp": (channel + 1) / 10}[chosen.name]


@every_base
@every_gate
@pytest.mark.parametrize("training", [False, True])
def test_output_against_loops(kind: str, chosen: Gate, training: bool) -> None:
    unit, inputs = unit_on(kind, chosen)
    base, novel = _slow_outputs(kind)
    novel = _slow_norm(unit.norm, novel, training)
    out = unit.train(training)(inputs)
    assert out.shape == base.shape
    for c in range(4):
        expected = base[:, c] + _slow_scale(chosen, unit.gamma[c].item(), c) * novel[:, c]
        assert torch.allclose(out[:, c], expected, rtol=0, atol=1e-11)


@every_base
@pytest.mark.parametrize("training", [False, True])
def test_output_with_feature_fusion_against_loops(kind: str, training: bool) -> None:
    unit, inputs = unit_on(kind, gate("aff"))
    base, novel = _slow_outputs(kind)
    novel = _slow_norm(unit.norm, novel, training)
    expected = [
        b + n / (1 + math.exp(b)) for b, n in zip(base.flatten().tolist(), novel.flatten().tolist(), strict=True)
    ]
    out = unit.train(training)(inputs)
    assert torch.allclose(out.flatten(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-11)


def test_training_mode_moves_the_statistics_of_the_branch_alone() -> None:
    unit, inputs = unit_on("conv2d", gate("amm"))
    norm = unit.norm
    assert norm is not None and norm.running_mean is not None and norm.running_var is not None
    mean, variance = norm.running_mean.clone(), norm.running_var.clone()
    _, novel = _slow_outputs("conv2d")
    unit.train()(inputs)
    for c in range(4):
        found = novel[:, c].flatten()
        assert norm.running_mean[c].item() == pytest.approx(0.9 * mean[c].item() + 0.1 * found.mean().item())
        assert norm.running_var[c].item() == pytest.approx(0.9 * variance[c].item() + 0.1 * found.var().item())


POINTWISE: dict[str, tuple[Layer, tuple[int, ...]]] = {
    "conv1d": (nn.Conv1d(2, 3, 5, stride=2, padding=4, dilation=2), (2, 2, 8)),
    "conv2d": (nn.Conv2d(2, 3, (3, 5), stride=(2, 1), padding=(2, 2), dilation=(2, 1)), (2, 2, 5, 6)),
    "grouped": (nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False), (2, 4, 3, 4)),
    "conv3d": (nn.Conv3d(2, 3, 3, stride=2, padding=1), (1, 2, 3, 4, 3)),
    "already 1x1": (nn.Conv2d(2, 3, 1, stride=2), (2, 2, 5, 4)),
}


@pytest.mark.parametrize("kind", POINTWISE)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_pointwise_branch_is_a_kernel_at_the_centre(kind: str, batch_norm: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    template, shape = POINTWISE[kind]
    base = copy.deepcopy(template).double()
    lively(base, generator)
    inputs = torch.randn(shape, dtype=torch.float64, generator=generator)
    gamma = torch.randn(len(base.weight), dtype=torch.float64, generator=generator)
    unit = HybridUnit(base, gate("amm"), gamma, pointwise=True, batch_norm=batch_norm, generator=generator)
    assert set(unit.novel.weight.shape[2:]) == {1}
    lively(unit.novel, generator)
    full = copy.deepcopy(base)
    with torch.no_grad():
        centre = [size // 2 for size in base.weight.shape[2:]]
        full.weight.zero_()
        for c, i in itertools.product(*map(range, base.weight.shape[:2])):
            full.weight[(c, i, *centre)] = unit.novel.weight[c, i].sum()
        full.bias = unit.novel.bias
    novel = _slow_layer(full, inputs)
    if unit.norm is not None:
        lively(unit.norm, generator)
        novel = _slow_norm(unit.norm, novel, training=False)
    scale = torch.tensor([1 / (1 + math.exp(value)) for value in gamma.tolist()], dtype=torch.float64)
    expected = _slow_layer(base, inputs) + scale.view(-1, *[1] * (inputs.dim() - 2)) * novel
    assert torch.allclose(unit.eval()(inputs), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("bias", [False, True])
def test_layers_of_an_mlp_against_loops(bias: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    gamma = torch.randn(3, dtype=torch.float64, generator=generator)
    first_base, second_base = nn.Linear(3, 5, bias=bias).double(), nn.Linear(5, 3, bias=bias).double()
    first = HybridUnit(first_base, gate("amm"), gamma, side="in", batch_norm=False)
    second = HybridUnit(second_base, gate("amm"), gamma, side="out", batch_norm=False)
    for unit in (first, second):
        assert (unit.novel.bias is not None) == bias
        lively(unit, generator)
    first_shift, second_shift = (
        [0.0] * 5 if unit.base.bias is None else unit.base.bias.tolist() for unit in (first, second)
    )
    first_moved, second_moved = (
        [0.0] * 5 if unit.novel.bias is None else unit.novel.bias.tolist() for unit in (first, second)
    )
    tokens = torch.randn(2, 4, 3, dtype=torch.float64, generator=generator)
    hidden = torch.randn(2, 4, 5, dtype=torch.float64, generator=generator)
    scales = [1 / (1 + math.exp(value)) for value in gamma.tolist()]
    for n, t in itertools.product(range(2), range(4)):
        for c in range(5):
            expected = first_shift[c] + first_moved[c]
            for i in range(3):
                weight = first.base.weight[c, i].item() + first.novel.weight[c, i].item() * scales[i]
                expected += weight * tokens[n, t, i].item()
            assert first(tokens)[n, t, c].item() == pytest.approx(expected, abs=1e-12)
        for c in range(3):
            expected = second_shift[c] + scales[c] * second_moved[c]
            for i in range(5):
                weight = second.base.weight[c, i].item() + scales[c] * second.novel.weight[c, i].item()
                expected += weight * hidden[n, t, i].item()
            assert second(hidden)[n, t, c].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", ["conv2d", "conv3d", "linear"])
def test_a_layer_without_norm_is_gated_by_its_row_norms(kind: str) -> None:
    generator = torch.Generator().manual_seed(4)
    make, _, shape = BASES[kind]
    base = make().double()
    lively(base, generator)
    unit = HybridUnit(base, gate("amm"), row_norms(base.weight), batch_norm=False)
    lively(unit.novel, generator)
    inputs = torch.randn(shape, dtype=torch.float64, generator=generator)
    norms = [math.sqrt(sum(value**2 for value in row)) for row in base.weight.flatten(1).tolist()]
    out, expected = unit(inputs), _slow_layer(base, inputs)
    novel = _slow_layer(unit.novel, inputs)
    for c in range(4):
        scale = 1 / (1 + math.exp(norms[c] / (sum(norms) / 4)))
        assert torch.allclose(out[:, c], expected[:, c] + scale * novel[:, c], rtol=0, atol=1e-11)


def test_feature_fusion_without_batch_norm() -> None:
    base = nn.Linear(3, 2).double()
    unit = HybridUnit(base, gate("aff"), torch.ones(3, dtype=torch.float64), side="in", batch_norm=False)
    lively(unit, torch.Generator().manual_seed(5))
    inputs = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    base_out, novel_out = _slow_layer(unit.base, inputs), _slow_layer(unit.novel, inputs)
    assert torch.allclose(unit(inputs), base_out + torch.sigmoid(-base_out) * novel_out, rtol=0, atol=1e-12)


@every_unit
@every_gate
def test_weight_and_bias_are_those_of_the_one_layer_that_equals_the_unit(
    kind: str, options: dict[str, Any], chosen: Gate
) -> None:
    if options.get("pointwise"):
        kind = "dilated"
    unit, inputs = unit_on(kind, chosen, **options)
    assert torch.allclose(applied_with(unit.base, inputs, unit.weight, unit.bias), unit(inputs), rtol=0, atol=1e-11)
    delta = unit.delta()
    assert torch.allclose(unit.base.weight + delta["weight"], unit.weight, rtol=0, atol=1e-14)
    assert unit.bias is not None and unit.base.bias is not None
    moved = unit.bias - unit.base.bias
    assert torch.allclose(delta.get("bias", torch.zeros_like(moved)), moved, rtol=0, atol=1e-14)


def test_bias_is_none_where_the_base_has_none() -> None:
    unit = HybridUnit(nn.Linear(2, 3, bias=False), gate("imm"), torch.ones(3), batch_norm=False)
    assert unit.bias is None and unit.novel.bias is None
    assert set(unit.delta()) == {"weight"}


def test_delta_against_loops() -> None:
    unit, _ = unit_on("conv2d", gate("amm"))
    norm, delta = unit.norm, unit.delta()
    assert norm is not None and norm.running_mean is not None and norm.running_var is not None
    for c in range(4):
        factor = norm.weight[c].item() / math.sqrt(norm.running_var[c].item() + norm.eps)
        scale = 1 / (1 + math.exp(unit.gamma[c].item()))
        shift = norm.bias[c].item() - norm.running_mean[c].item() * factor
        assert delta["bias"][c].item() == pytest.approx(scale * shift, abs=1e-13)
        assert delta["gamma"][c].item() == pytest.approx(scale * norm.weight[c].item(), abs=1e-13)
        for moved, value in zip(
            delta["weight"][c].flatten().tolist(), unit.novel.weight[c].flatten().tolist(), strict=True
        ):
            assert moved == pytest.approx(scale * value * factor, abs=1e-13)


def test_delta_is_summed_in_float64_whatever_the_weights_are() -> None:
    unit, _ = unit_on("conv2d", gate("amm"), torch.float32)
    delta, exact = unit.delta(), unit.double().delta()
    assert all(value.dtype == torch.float64 for value in delta.values())
    assert all(torch.equal(delta[name], exact[name]) for name in exact)
