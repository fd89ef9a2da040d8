import copy
import math

import pytest
import torch
from torch import Tensor, nn

from inlay.backbones import build
from inlay.branches import (
    FoldedConv,
    attach,
    branch_parameters,
    count_parameters,
    fold,
    hybrid_units,
    is_hybrid,
    merge,
)
from inlay.branches.gates import Gate
from inlay.branches.gates import gate as find_gate
from inlay.errors import InlayError


def _images(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _folded(name: str = "resnet8", dtype: torch.dtype = torch.float32) -> nn.Module:
    network = build(name, generator=torch.Generator().manual_seed(0)).to(dtype).train()
    with torch.no_grad():
        for seed in range(2):
            network(_images(seed, dtype))
    return fold(network, _images(dtype=dtype))


def _train(hybrid: nn.Module, dtype: torch.dtype = torch.float32, steps: int = 3) -> None:
    hybrid.train()
    optimiser = torch.optim.SGD(branch_parameters(hybrid), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimiser.zero_grad()
        torch.autograd.backward([(hybrid(_images(10 + step, dtype)) - 1).square().mean()])
        optimiser.step()


def _trained_hybrid(gate: str | Gate = "amm", dtype: torch.dtype = torch.float32) -> nn.Module:
    hybrid = attach(_folded(dtype=dtype), gate, generator=torch.Generator().manual_seed(1))
    _train(hybrid, dtype)
    return hybrid


def _gammas(model: nn.Module) -> dict[str, Tensor]:
    return {name: module.gamma for name, module in model.named_modules() if isinstance(module, FoldedConv)}


@pytest.mark.parametrize("name", ["resnet8", "resnet32", "resnet18", "resnet18-1x1"])
def test_three_rounds_stay_exact_and_do_not_grow(name: str) -> None:
    model = _folded(name)
    count = count_parameters(model)
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    for turn in range(3):
        hybrid = attach(model, generator=torch.Generator().manual_seed(turn))
        _train(hybrid, steps=2)
        before = hybrid.eval()(_images())
        report = merge(hybrid, _images(7))
        assert report.relative_diff is not None and report.relative_diff <= 1e-4
        assert report.relative_diff_float64 is not None and report.relative_diff_float64 <= 1e-10
        change = (before - model(_images())).abs().max().item()
        assert change > 100 * (before - report.model(_images())).abs().max().item()
        old, new = _gammas(model), _gammas(report.model)
        for unit_name, unit in hybrid_units(hybrid).items():
            for g, novel, merged in zip(
                old[unit_name].tolist(), unit.norm.weight.tolist(), new[unit_name].tolist(), strict=True
            ):
                assert merged == pytest.approx(g + novel / (1 + math.exp(g)), rel=1e-6, abs=1e-7)
        model = report.model
        assert count == count_parameters(model) == report.parameters_before == report.parameters_after
        assert report.parameters_hybrid == count_parameters(hybrid) > count
        assert {key: value.shape for key, value in model.state_dict().items()} == shapes


@pytest.mark.parametrize(
    "gate",
    [find_gate("imm"), find_gate("amm"), find_gate("amm", absolute=True), find_gate("constant", value=0.3)],
    ids=str,
)
def test_every_mergeable_gate_is_exact_in_float64(gate: Gate) -> None:
    hybrid = _trained_hybrid(gate, torch.float64)
    images = _images(5, torch.float64)
    report = merge(hybrid, images)
    assert torch.allclose(report.model(images), hybrid.eval()(images), rtol=0, atol=1e-11)
    assert report.max_abs_diff is not None and report.max_abs_diff <= 1e-10
    assert all(parameter.dtype == torch.float64 for parameter in report.model.parameters())


def test_differences_are_those_on_the_probe() -> None:
    hybrid = _trained_hybrid()
    report = merge(hybrid, _images(5))
    expected, actual = hybrid.eval()(_images(5)), report.model(_images(5))
    largest = (expected - actual).abs().max().item()
    assert report.max_abs_diff == largest
    assert report.relative_diff == pytest.approx(largest / max(1.0, expected.abs().max().item()))


def test_merged_network_is_plain_and_ready_for_the_next_round() -> None:
    folded = _folded()
    hybrid = attach(folded, include=["layer2*"])
    _train(hybrid)
    model = merge(hybrid, _images()).model
    assert not is_hybrid(model)
    assert [type(module) for module in model.modules()] == [type(module) for module in folded.modules()]
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    changed = {
        name.rpartition(".")[0]
        for name, value in model.state_dict().items()
        if not torch.equal(value, folded.state_dict()[name])
    }
    assert changed == {"layer2.0.conv1", "layer2.0.conv2"}


def test_the_hybrid_is_left_as_it_was() -> None:
    hybrid = _trained_hybrid().train()
    state = copy.deepcopy(hybrid.state_dict())
    modes = [module.training for module in hybrid.modules()]
    merge(hybrid, _images())
    assert [module.training for module in hybrid.modules()] == modes
    assert all(torch.equal(value, hybrid.state_dict()[name]) for name, value in state.items())
    assert all(parameter.requires_grad for parameter in branch_parameters(hybrid))
    assert not hybrid.train().get_submodule("layer1").training


def test_without_a_probe_nothing_is_measured() -> None:
    report = merge(_trained_hybrid())
    assert (report.max_abs_diff, report.relative_diff, report.relative_diff_float64) == (None, None, None)


def test_channels_last_is_kept() -> None:
    folded = _folded()
    folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    hybrid = attach(folded)
    _train(hybrid)
    for model in (hybrid, merge(hybrid, _images()).model):
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                assert module.weight.is_contiguous(memory_format=torch.channels_last)


def test_modules_with_two_names_are_merged_under_both() -> None:
    class Listed(nn.Module):
        """Its second block has two names, and the convolution of the first has too."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
            self.block = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
            self.all = nn.ModuleList([self.conv, self.block])

        def forward(self, images: Tensor) -> Tensor:
            out: Tensor = self.block(self.norm(self.conv(images)).relu())
            return out.mean(dim=(2, 3))

    folded = fold(Listed(), _images())
    hybrid = attach(folded, generator=torch.Generator().manual_seed(1))
    _train(hybrid)
    report = merge(hybrid, _images(7))
    model = report.model
    assert report.parameters_before == report.parameters_after == count_parameters(folded)
    assert model.get_submodule("all.0") is model.get_submodule("conv")
    assert model.get_submodule("all.1.0") is model.get_submodule("block.0")
    assert model.state_dict().keys() == folded.state_dict().keys()
    assert (model(_images()) - folded(_images())).abs().max() > 1e-3


def test_aff_refuses_to_merge_and_nothing_changes() -> None:
    hybrid = _trained_hybrid("aff")
    state = copy.deepcopy(hybrid.state_dict())
    with pytest.raises(InlayError, match="AFF gates depend on the image and cannot be merged; keep the hybrid"):
        merge(hybrid, _images())
    assert is_hybrid(hybrid)
    assert all(torch.equal(value, hybrid.state_dict()[name]) for name, value in state.items())


def test_a_network_without_branches_is_refused() -> None:
    with pytest.raises(InlayError, match="no branches"):
        merge(_folded())


def test_weights_that_are_not_finite_are_refused() -> None:
    hybrid = _trained_hybrid()
    with torch.no_grad():
        hybrid_units(hybrid)["layer1.0.conv2"].novel.weight[0, 0, 0, 0] = torch.inf
    with pytest.raises(InlayError, match=r"'layer1\.0\.conv2\.weight' that are not finite"):
        merge(hybrid)


def test_a_difference_above_the_tolerance_is_refused() -> None:
    hybrid = _trained_hybrid()
    with pytest.raises(InlayError, match="differs from the hybrid"):
        merge(hybrid, _images(), tolerance=0.0)
    with pytest.raises(InlayError, match="differs from the hybrid by nan"):
        merge(hybrid, _images() * torch.nan)
    assert is_hybrid(hybrid)
