import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from branch_networks import (
    NETWORKS,
    Block,
    Network,
    Pooled,
    hash_outside_branches,
    lively,
    relative_gap,
    same_state,
    train,
    trained,
)
from inlay.backbones import build
from inlay.branches import (
    Gate,
    History,
    Targets,
    attach,
    branch_parameters,
    count_parameters,
    fold,
    gammas,
    hybrid_units,
    is_hybrid,
    merge,
    rollback,
)
from inlay.branches import gate as find_gate
from inlay.branches.attachment import attachments
from inlay.branches.layers import row_norms
from inlay.errors import InlayError

FLOAT64 = torch.float64
PLAIN = NETWORKS["conv2d"]
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


@dataclass(frozen=True)
class Tenth(Gate):
    """A gate of one's own."""

    name: ClassVar[str] = "tenth"

    def scale(self, gamma: Tensor) -> Tensor:
        return 0.1 * (1 + gamma.square())


def _state(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


@every_network
def test_float32_merges_stay_within_1e_4_and_are_exact_in_float64(network: Network) -> None:
    hybrid, start = trained(network), fold(network.model(), network.images())
    report = merge(hybrid, network.images(7))
    images = network.images(8)
    with torch.no_grad():
        before, expected, actual = start(images), hybrid.eval()(images), report.model(images)
    assert relative_gap(expected, actual) <= 1e-4
    assert report.relative_diff is not None and report.relative_diff <= report.tolerance == 1e-4
    assert report.relative_diff_float64 is not None and report.relative_diff_float64 <= 1e-10
    # The branches had learned something that could have been lost.
    assert relative_gap(before, expected) > 100 * relative_gap(expected, actual)


@every_network
def test_float64_merges_are_exact(network: Network) -> None:
    hybrid = trained(network, dtype=FLOAT64)
    report = merge(hybrid, network.images(7, FLOAT64))
    images = network.images(8, FLOAT64)
    with torch.no_grad():
        assert relative_gap(hybrid.eval()(images), report.model(images)) <= 1e-10
    assert report.relative_diff is not None and report.relative_diff <= report.tolerance == 1e-10
    assert all(parameter.dtype == FLOAT64 for parameter in report.model.parameters())


@pytest.mark.parametrize(
    "gate",
    [find_gate("imm"), find_gate("amm", absolute=True), find_gate("constant", value=0.3), Tenth()],
    ids=str,
)
@pytest.mark.parametrize("name", ["conv2d", "1x1", "mlp", "no norm"])
def test_every_mergeable_gate_is_exact_in_float64(gate: Gate, name: str) -> None:
    network = NETWORKS[name]
    hybrid = trained(network, gate, FLOAT64)
    model = merge(hybrid, network.images(7, FLOAT64)).model
    with torch.no_grad():
        gap = relative_gap(hybrid.eval()(network.images(8, FLOAT64)), model(network.images(8, FLOAT64)))
    assert gap <= 1e-10


@every_network
def test_the_merged_network_has_the_modules_of_the_folded_base(network: Network) -> None:
    base = fold(network.model(), network.images())
    hybrid = trained(network)
    report = merge(hybrid, network.images())
    model = report.model
    assert [(name, type(module)) for name, module in model.named_modules()] == [
        (name, type(module)) for name, module in base.named_modules()
    ]
    assert {name: value.shape for name, value in model.state_dict().items()} == {
        name: value.shape for name, value in base.state_dict().items()
    }
    assert count_parameters(base) == count_parameters(model) == report.parameters_before == report.parameters_after
    assert report.parameters_hybrid == count_parameters(hybrid) > count_parameters(base)
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not is_hybrid(model) and not attachments(model)
    assert all(module.training for module in model.train().modules())


@every_network
def test_only_layers_with_a_branch_change(network: Network) -> None:
    base, hybrid = fold(network.model(), network.images()), trained(network)
    model = merge(hybrid).model
    changed = {
        name.rpartition(".")[0]
        for name, value in model.state_dict().items()
        if not torch.equal(value, base.state_dict()[name])
    }
    assert changed == set(network.branches)


def test_gammas_move_on_by_the_gated_scale_of_the_branch() -> None:
    hybrid = trained(PLAIN)
    new = gammas(merge(hybrid).model)
    assert set(new) == set(PLAIN.branches)
    for name, unit in hybrid_units(hybrid).items():
        assert unit.norm is not None
        old = gammas(fold(PLAIN.model(), PLAIN.images()))[name].tolist()
        for gamma, novel, merged in zip(old, unit.norm.weight.tolist(), new[name].tolist(), strict=True):
            assert merged == pytest.approx(gamma + novel / (1 + math.exp(gamma)), rel=1e-6, abs=1e-7)


def test_the_gate_of_an_mlp_is_read_again_after_the_merge() -> None:
    network = NETWORKS["mlp"]
    targets = Targets(trainable=["norm", "head"])
    hybrid = attach(network.model(), network.images(), targets=targets)
    old = network.model().get_parameter("norm.weight")
    optimiser = torch.optim.SGD([p for p in hybrid.parameters() if p.requires_grad], lr=0.1)
    for seed in range(3):
        optimiser.zero_grad()
        hybrid.train()(network.images(seed)).square().sum().backward()
        optimiser.step()
    assert all(torch.equal(unit.gamma, old) for unit in hybrid_units(hybrid).values())
    merged = merge(hybrid, network.images()).model
    new = merged.get_parameter("norm.weight")
    assert not torch.equal(new, old) and new.requires_grad
    again = hybrid_units(attach(merged, network.images(), targets=targets))
    assert all(torch.equal(unit.gamma, new) for unit in again.values())


def test_row_norms_are_taken_again_after_the_merge() -> None:
    network = NETWORKS["no norm"]
    hybrid = trained(network)
    merged = merge(hybrid).model
    for name, unit in hybrid_units(attach(merged, network.images(), targets=network.targets)).items():
        assert torch.equal(unit.gamma, row_norms(merged.get_parameter(f"{name}.weight")))
        assert not torch.equal(unit.gamma, hybrid_units(hybrid)[name].gamma)


@every_network
def test_the_hybrid_is_left_as_it_was(network: Network) -> None:
    hybrid = trained(network)
    state, modes = _state(hybrid), [module.training for module in hybrid.modules()]
    merge(hybrid, network.images())
    assert same_state(state, hybrid.state_dict())
    assert [module.training for module in hybrid.modules()] == modes
    assert all(parameter.requires_grad for parameter in branch_parameters(hybrid))
    assert same_state(merge(hybrid).model.state_dict(), merge(hybrid).model.state_dict())


def test_differences_are_those_on_the_probe() -> None:
    hybrid = trained(PLAIN)
    report = merge(hybrid, PLAIN.images(5))
    with torch.no_grad():
        expected, actual = hybrid.eval()(PLAIN.images(5)), report.model(PLAIN.images(5))
    assert report.max_abs_diff == (expected - actual).abs().max().item()
    assert report.relative_diff == pytest.approx(relative_gap(expected, actual))


def test_without_a_probe_nothing_is_measured() -> None:
    report = merge(trained(PLAIN))
    assert (report.max_abs_diff, report.relative_diff, report.relative_diff_float64) == (None, None, None)
    assert report.stage is None


@every_network
def test_merging_in_place_gives_the_same_module_the_same_values(network: Network) -> None:
    hybrid = trained(network)
    expected = merge(hybrid, network.images()).model
    report = merge(hybrid, network.images(), inplace=True)
    assert report.model is hybrid and not is_hybrid(hybrid)
    assert same_state(expected.state_dict(), hybrid.state_dict())
    assert [type(module) for module in hybrid.modules()] == [type(module) for module in expected.modules()]
    with pytest.raises(InlayError, match="no branches"):
        merge(hybrid)


def test_merging_in_place_changes_nothing_when_it_fails(tmp_path: Path) -> None:
    hybrid = trained(PLAIN)
    state = _state(hybrid)
    (tmp_path / "letter.txt").write_text("not a history")
    with pytest.raises(InlayError, match="differs from the hybrid"):
        merge(hybrid, PLAIN.images(), tolerance=0.0, inplace=True)
    with pytest.raises(InlayError, match="holds no history"):
        merge(hybrid, PLAIN.images(), history=tmp_path, inplace=True)
    assert is_hybrid(hybrid) and same_state(state, hybrid.state_dict())


def test_aff_refuses_to_merge_and_nothing_changes(tmp_path: Path) -> None:
    hybrid = trained(PLAIN, "aff")
    state = _state(hybrid)
    for inplace in (False, True):
        with pytest.raises(InlayError, match="AFF gates depend on the image and cannot be merged; keep the hybrid"):
            merge(hybrid, PLAIN.images(), history=tmp_path / "stages", inplace=inplace)
    assert is_hybrid(hybrid) and same_state(state, hybrid.state_dict())
    assert not (tmp_path / "stages").exists()


def test_a_network_without_branches_is_refused() -> None:
    for model in (PLAIN.model(), merge(trained(PLAIN)).model):
        with pytest.raises(InlayError, match="no branches"):
            merge(model)


@pytest.mark.parametrize("part", ["novel.weight", "norm.weight", "norm.bias", "norm.running_var", "base.bias"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_values_that_are_not_finite_are_refused(part: str, value: float) -> None:
    if (part, value) == ("norm.running_var", torch.inf):
        value = -1.0
    hybrid = trained(PLAIN)
    hybrid.state_dict()[f"layers.3.{part}"][0] = value
    state = _state(hybrid)
    for probe in (None, PLAIN.images()):
        with pytest.raises(InlayError, match=r"'layers\.3\.\w+'.* not finite"):
            merge(hybrid, probe)
    assert is_hybrid(hybrid)
    assert all(torch.equal(value.nan_to_num(), hybrid.state_dict()[name].nan_to_num()) for name, value in state.items())


def test_unfit_probes_and_tolerances_are_refused() -> None:
    hybrid = trained(PLAIN)
    state = _state(hybrid)
    with pytest.raises(InlayError, match=r"fails on the probe \(float32 \[3, 2, 7, 6\]\)"):
        merge(hybrid, PLAIN.images()[:, :2])
    with pytest.raises(InlayError, match="differs from the hybrid by nan"):
        merge(hybrid, PLAIN.images() * torch.nan)
    with pytest.raises(InlayError, match=r"differs from the hybrid by .*0e\+00 is allowed\), so nothing was merged"):
        merge(hybrid, PLAIN.images(), tolerance=0.0)
    for tolerance in (-1.0, math.nan, math.inf):
        with pytest.raises(InlayError, match="relative difference such as 1e-4"):
            merge(hybrid, PLAIN.images(), tolerance=tolerance)
    with pytest.raises(InlayError, match=r"cannot be stored as torch\.int8"):
        merge(hybrid, storage=torch.int8)
    assert is_hybrid(hybrid) and same_state(state, hybrid.state_dict())


def test_a_network_that_fails_in_float64_is_refused_by_that_reason() -> None:
    class Narrow(Pooled):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images.float())

    network = Network(lambda: Narrow(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (3, 3, 6, 6), ("layers.0",))
    hybrid = trained(network)
    with pytest.raises(InlayError, match=r"pass check_float64=False \(.*fails on the probe in float64"):
        merge(hybrid, network.images())
    report = merge(hybrid, network.images(), check_float64=False)
    assert report.relative_diff_float64 is None and report.relative_diff is not None


def test_a_network_that_keeps_its_last_outputs_is_merged_once_they_are_free() -> None:
    class Keeping(Pooled):
        def forward(self, images: Tensor) -> Tensor:
            out = super().forward(images)
            self.kept = out
            return out

    network = Network(lambda: Keeping(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (3, 3, 6, 6), ("layers.0",))
    hybrid = train(attach(network.model(), network.images()), network)
    with pytest.raises(InlayError, match="cannot be copied"):
        merge(hybrid, network.images())
    with torch.no_grad():
        hybrid.eval()(network.images())
    assert merge(hybrid, network.images()).relative_diff_float64 is not None


def test_channels_last_is_kept() -> None:
    model = lively(build("resnet8", generator=torch.Generator().manual_seed(0))).eval()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network = Network(lambda: model, (4, 3, 8, 8), ())
    hybrid = train(attach(model, network.images()), network)
    outside = hash_outside_branches(hybrid)
    for inplace in (False, True):
        merged = merge(hybrid, network.images(), inplace=inplace).model
        convolutions = [module for module in merged.modules() if isinstance(module, nn.Conv2d)]
        assert len(convolutions) == 7
        assert all(conv.weight.is_contiguous(memory_format=torch.channels_last) for conv in convolutions)
    assert hash_outside_branches(attach(model, network.images())) == outside


def test_a_backbone_stays_exact_over_two_rounds() -> None:
    network = Network(lambda: build("resnet8"), (4, 3, 8, 8), ())
    model = network.model()
    for turn in range(2):
        hybrid = attach(model, network.images(), generator=torch.Generator().manual_seed(turn))
        outside = hash_outside_branches(hybrid)
        train(hybrid, network, steps=2)
        assert hash_outside_branches(hybrid) == outside
        report = merge(hybrid, network.images(7))
        assert report.relative_diff is not None and report.relative_diff <= 1e-4
        assert report.relative_diff_float64 is not None and report.relative_diff_float64 <= 1e-10
        model = report.model


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.bfloat16, 5e-2), (torch.float16, 5e-3)])
@pytest.mark.parametrize("name", ["conv2d", "mlp"])
def test_half_precision_networks_merge_within_their_rounding(
    tmp_path: Path, name: str, dtype: torch.dtype, allowed: float
) -> None:
    network = NETWORKS[name]
    hybrid = trained(network, dtype=dtype)
    report = merge(hybrid, network.images(dtype=dtype), history=tmp_path)
    assert report.tolerance == allowed
    assert report.relative_diff is not None and report.relative_diff <= allowed
    assert report.relative_diff_float64 is not None and report.relative_diff_float64 <= 1e-10
    assert same_state(rollback(report.model, tmp_path, 1).state_dict(), report.model.state_dict())


@pytest.mark.parametrize("name", ["conv2d", "linear", "mlp", "no norm", "1x1"])
def test_a_hybrid_trained_under_autocast_merges_as_exactly(name: str) -> None:
    network = NETWORKS[name]
    hybrid = attach(network.model(), network.images(), targets=network.targets)
    with torch.autocast("cpu", torch.bfloat16):
        train(hybrid, network)
        assert hybrid(network.images()).dtype == torch.bfloat16
        report = merge(hybrid, network.images())
    assert {parameter.dtype for parameter in hybrid.parameters()} == {torch.float32}
    assert report.relative_diff is not None and report.relative_diff <= 1e-4
    assert report.relative_diff_float64 is not None and report.relative_diff_float64 <= 1e-10


def test_a_hybrid_that_was_converted_merges_in_its_new_type(tmp_path: Path) -> None:
    hybrid = trained(PLAIN).double()
    report = merge(hybrid, PLAIN.images(dtype=FLOAT64), history=tmp_path)
    assert report.relative_diff is not None and report.relative_diff <= 1e-10
    assert {value.dtype for value in History(tmp_path).state(1).values()} == {FLOAT64}


def test_layers_of_an_mlp_merge_against_loops() -> None:
    network = NETWORKS["mlp"]
    hybrid = trained(network, dtype=FLOAT64)
    base, merged = network.model(FLOAT64), merge(hybrid).model
    assert isinstance(base, Block) and isinstance(merged, Block)
    scales = [1 / (1 + math.exp(gamma)) for gamma in base.norm.weight.tolist()]
    first, second = hybrid_units(hybrid)["first"].novel, hybrid_units(hybrid)["second"].novel
    assert first.bias is not None and second.bias is not None
    for c in range(6):
        assert merged.first.bias[c].item() == pytest.approx(base.first.bias[c].item() + first.bias[c].item())
        for i in range(4):
            expected = base.first.weight[c, i].item() + first.weight[c, i].item() * scales[i]
            assert merged.first.weight[c, i].item() == pytest.approx(expected, abs=1e-14)
            expected = base.second.weight[i, c].item() + scales[i] * second.weight[i, c].item()
            assert merged.second.weight[i, c].item() == pytest.approx(expected, abs=1e-14)
    for i in range(4):
        expected = base.second.bias[i].item() + scales[i] * second.bias[i].item()
        assert merged.second.bias[i].item() == pytest.approx(expected, abs=1e-14)
