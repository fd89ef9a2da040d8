import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import nn

from hybrid_cases import Ramp, every_base, every_unit, unit_on
from inlay.branches import gate
from inlay.branches.gates import Gate
from inlay.branches.hybrid import HybridUnit
from inlay.errors import InlayError


@every_base
@pytest.mark.parametrize("name", ["imm", "aff", "amm"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_new_unit_is_the_base_and_in_eval_mode_bit_for_bit(kind: str, name: str, batch_norm: bool) -> None:
    trained, inputs = unit_on(kind, gate(name), torch.float32)
    unit = HybridUnit(trained.base, gate(name), trained.gamma, batch_norm=batch_norm)
    expected = trained.base(inputs)
    assert torch.allclose(unit.train()(inputs), expected, rtol=0, atol=1e-5)
    assert torch.equal(unit.eval()(inputs), expected)


@every_unit
@pytest.mark.parametrize("chosen", [gate("amm"), gate("aff")], ids=str)
def test_gradients_reach_the_branch_and_the_input_alone(kind: str, options: dict[str, Any], chosen: Gate) -> None:
    if options.get("pointwise"):
        kind = "dilated"
    unit, inputs = unit_on(kind, chosen, **options)
    unit.train()(inputs.requires_grad_()).square().sum().backward()
    branch = [*unit.novel.parameters(), *([] if unit.norm is None else unit.norm.parameters())]
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in branch)
    assert inputs.grad is not None and inputs.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in unit.base.parameters())
    assert {id(parameter) for parameter in unit.parameters() if parameter.requires_grad} == set(map(id, branch))


def test_gradients_of_a_branch_without_norm_are_gated() -> None:
    unit, inputs = unit_on("linear", gate("amm"), batch_norm=False)
    unit(inputs).sum().backward()
    for c in range(4):
        scale = 1 / (1 + math.exp(unit.gamma[c].item()))
        expected = [scale * value for value in inputs.sum(0).tolist()]
        assert unit.novel.weight.grad is not None
        assert unit.novel.weight.grad[c].tolist() == pytest.approx(expected, abs=1e-12)


def test_geometry_can_be_read_as_from_the_base() -> None:
    conv, _ = unit_on("dilated", gate("amm"))
    assert isinstance(conv.base, nn.Conv2d)
    assert (conv.in_channels, conv.out_channels, conv.kernel_size, conv.groups) == (2, 4, (3, 3), 1)
    assert (conv.stride, conv.padding, conv.dilation, conv.padding_mode) == ((1, 1), (2, 2), (2, 2), "zeros")
    linear, _ = unit_on("linear", gate("amm"))
    assert (linear.in_features, linear.out_features) == (5, 4)
    with pytest.raises(AttributeError, match="width"):
        _ = linear.width


def test_channels_last_is_kept() -> None:
    for pointwise in (False, True):
        conv = nn.Conv2d(3, 4, 3, padding=1)
        conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        unit = HybridUnit(conv, gate("amm"), torch.ones(4), pointwise=pointwise)
        for weight in (unit.base.weight, unit.novel.weight, unit.weight):
            assert weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_branch_has_the_type_of_the_base(dtype: torch.dtype) -> None:
    unit, inputs = unit_on("conv2d", gate("amm"), dtype)
    assert {parameter.dtype for parameter in unit.parameters()} == {dtype}
    assert unit.train()(inputs).dtype == unit.weight.dtype == dtype


def test_the_kernel_comes_from_the_generator_alone() -> None:
    base = nn.Conv2d(2, 4, 3)
    state = torch.get_rng_state()
    units = [HybridUnit(base, gate("amm"), torch.ones(4), generator=torch.Generator().manual_seed(4)) for _ in "ab"]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(units[0].novel.weight, units[1].novel.weight)
    assert units[0].novel.weight.std() > 0


def test_without_a_generator_the_kernel_comes_from_the_default_one() -> None:
    base = nn.Conv2d(2, 4, 3)
    torch.manual_seed(4)
    unit = HybridUnit(base, gate("amm"), torch.ones(4))
    seeded = HybridUnit(base, gate("amm"), torch.ones(4), generator=torch.Generator().manual_seed(4))
    assert torch.equal(unit.novel.weight, seeded.novel.weight)


def test_the_gate_keeps_the_gamma_of_the_start() -> None:
    gamma = torch.ones(4)
    unit = HybridUnit(nn.Conv2d(2, 4, 3), gate("amm"), gamma)
    gamma.zero_()
    assert torch.equal(unit.gamma, torch.ones(4))


def test_a_unit_whose_gate_depends_on_the_image_shows_the_weight_of_its_base() -> None:
    unit, _ = unit_on("conv2d", gate("aff"))
    with pytest.raises(InlayError, match="depend on the image"):
        unit.delta()
    assert unit.weight is unit.base.weight and unit.bias is unit.base.bias


def test_the_input_can_be_given_by_the_name_that_torch_gives_it() -> None:
    unit, inputs = unit_on("conv2d", gate("amm"))
    assert torch.equal(unit(input=inputs), unit(inputs))


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_novel_kernels_of_groups_are_as_large_as_their_fan_out_asks(groups: int) -> None:
    base = nn.Conv2d(64, 64, 5, groups=groups)
    unit = HybridUnit(base, gate("amm"), torch.ones(64), generator=torch.Generator().manual_seed(0))
    assert unit.novel.weight.std().item() == pytest.approx(math.sqrt(2 / (64 / groups * 25)), rel=0.05)


@pytest.mark.parametrize("chosen", [gate("aff"), gate("constant", value=0.5), Ramp()], ids=str)
def test_units_survive_copies_and_pickles(chosen: Gate) -> None:
    unit, inputs = unit_on("conv2d", chosen)
    file = io.BytesIO()
    torch.save(unit, file)
    file.seek(0)
    for twin in (copy.deepcopy(unit), torch.load(file, weights_only=False)):
        assert torch.equal(twin(inputs), unit(inputs))
        assert twin.gate == chosen and twin.novel.weight is not unit.novel.weight
