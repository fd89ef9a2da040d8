import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inlay.branches import FoldedConv, HybridConv, gate
from inlay.branches.gates import Gate
from inlay.errors import InlayError

GEOMETRIES: list[dict[str, Any]] = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": 3, "padding": 1, "groups": 2},
    {"kernel_size": 3, "padding": 2, "dilation": 2},
    {"kernel_size": (3, 1), "stride": (2, 1), "padding": (1, 0)},
    {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    {"kernel_size": 3, "padding": "same", "padding_mode": "circular"},
]
GATES = [gate("imm"), gate("amm"), gate("amm", absolute=True), gate("constant", value=-0.7)]


def _base(generator: torch.Generator, dtype: torch.dtype = torch.float64, **geometry: Any) -> FoldedConv:
    conv = nn.Conv2d(2, 4, dtype=dtype, **geometry)
    weight = torch.randn(conv.weight.shape, dtype=dtype, generator=generator)
    bias, gamma = torch.randn(2, 4, dtype=dtype, generator=generator)
    return FoldedConv(conv, weight, bias, gamma)


def _unit(chosen: Gate, dtype: torch.dtype = torch.float64, **geometry: Any) -> HybridConv:
    """Make a unit whose novel norm has arbitrary scale, shift and statistics."""
    generator = torch.Generator().manual_seed(0)
    unit = HybridConv(_base(generator, dtype, **geometry), chosen, generator)
    assert unit.norm.running_mean is not None and unit.norm.running_var is not None
    with torch.no_grad():
        for values in (unit.norm.weight, unit.norm.bias, unit.norm.running_mean):
            values.normal_(generator=generator)
        unit.norm.running_var.uniform_(0.2, 2, generator=generator)
    return unit.eval()


def _images(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(3, 2, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("chosen", GATES, ids=str)
def test_merged_convolution_equals_the_unit(chosen: Gate, geometry: dict[str, Any]) -> None:
    unit = _unit(chosen, **geometry)
    merged = unit.merged()
    assert torch.allclose(merged(_images()), unit(_images()), rtol=0, atol=1e-12)
    assert not any(parameter.requires_grad for parameter in merged.parameters())


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("name", ["imm", "aff", "amm"])
def test_unit_starts_at_the_base_bit_for_bit(name: str, geometry: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    base = _base(generator, torch.float32, **geometry)
    unit = HybridConv(base, gate(name), generator)
    images = _images(torch.float32)
    assert torch.equal(unit.train()(images), base(images))
    assert torch.equal(unit.eval()(images), base(images))


def test_merge_against_loops() -> None:
    unit = _unit(gate("amm"), kernel_size=3, padding=1)
    novel_weight, novel_bias = unit.novel_kernel()
    merged = unit.merged()
    norm = unit.norm
    assert norm.running_mean is not None and norm.running_var is not None
    for c in range(4):
        factor = norm.weight[c].item() / math.sqrt(norm.running_var[c].item() + norm.eps)
        shift = norm.bias[c].item() - norm.running_mean[c].item() * factor
        old_gamma = unit.base.gamma[c].item()
        scale = 1 / (1 + math.exp(old_gamma))
        assert novel_bias[c].item() == pytest.approx(shift, abs=1e-14)
        bias = unit.base.bias[c].item() + scale * shift
        assert merged.bias[c].item() == pytest.approx(bias, abs=1e-14)
        gamma = old_gamma + scale * norm.weight[c].item()
        assert merged.gamma[c].item() == pytest.approx(gamma, abs=1e-14)
        for i in range(2):
            for y in range(3):
                for x in range(3):
                    kernel = unit.novel.weight[c, i, y, x].item() * factor
                    assert novel_weight[c, i, y, x].item() == pytest.approx(kernel, abs=1e-14)
                    total = unit.base.weight[c, i, y, x].item() + scale * kernel
                    assert merged.weight[c, i, y, x].item() == pytest.approx(total, abs=1e-14)


def test_unit_output_against_a_slow_convolution() -> None:
    unit = _unit(gate("amm"), kernel_size=3)
    images = _images()
    out = unit(images)
    norm = unit.norm
    assert norm.running_mean is not None and norm.running_var is not None
    for c in range(4):
        for y in range(5):
            for x in range(4):
                patch = images[0, :, y : y + 3, x : x + 3]
                base = (patch * unit.base.weight[c]).sum().item() + unit.base.bias[c].item()
                novel = (patch * unit.novel.weight[c]).sum().item() - norm.running_mean[c].item()
                novel = novel / math.sqrt(norm.running_var[c].item() + norm.eps) * norm.weight[c].item()
                scale = 1 / (1 + math.exp(unit.base.gamma[c].item()))
                expected = base + scale * (novel + norm.bias[c].item())
                assert out[0, c, y, x].item() == pytest.approx(expected, abs=1e-12)


def test_sums_are_taken_in_float64_and_stored_in_the_working_dtype() -> None:
    unit = _unit(gate("amm"), torch.float32, kernel_size=3)
    merged = unit.merged()
    exact = unit.double().merged()
    assert merged.weight.dtype == merged.bias.dtype == merged.gamma.dtype == torch.float32
    assert torch.equal(merged.weight, exact.weight.float())
    assert torch.equal(merged.bias, exact.bias.float())
    assert torch.equal(merged.gamma, exact.gamma.float())


def test_channels_last_is_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    conv = nn.Conv2d(3, 4, 3)
    conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    unit = HybridConv(FoldedConv(conv, conv.weight, torch.zeros(4), torch.ones(4)), gate("amm"), generator)
    for weight in (unit.base.weight, unit.novel.weight, unit.merged().weight):
        assert weight.is_contiguous(memory_format=torch.channels_last)


def test_aff_unit_cannot_be_merged() -> None:
    with pytest.raises(InlayError, match="depend on the image"):
        _unit(gate("aff"), kernel_size=3).merged()


def test_novel_kernel_comes_from_the_generator_alone() -> None:
    base = _base(torch.Generator().manual_seed(0), kernel_size=3)
    state = torch.get_rng_state()
    first = HybridConv(base, gate("amm"), torch.Generator().manual_seed(4))
    second = HybridConv(base, gate("amm"), torch.Generator().manual_seed(4))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.novel.weight, second.novel.weight)
    assert first.novel.weight.std() > 0
    assert first.novel.bias is None
