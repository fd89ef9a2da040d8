import copy
import math

import pytest
import torch
from torch import Tensor, nn

from inlay import branches
from inlay.backbones import build
from inlay.errors import InlayError
from inlay.methods.trunk import check_backbone, close_trunk, open_trunk, starting_network
from inlay.settings import BranchSettings
from tiny_stage import SEED, quick, settle, tiny_task


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return tiny_task(quick()).network


@pytest.fixture(scope="module")
def probe() -> Tensor:
    task = tiny_task(quick())
    return task.first_inputs(len(task.feed))


def opened(network: nn.Module, settings: BranchSettings, seed: int = SEED) -> nn.Module:
    task = tiny_task(quick())
    return open_trunk(network, settings, seed, task.first_inputs(2))


MERGED = [
    BranchSettings("imm"),
    BranchSettings("amm"),
    BranchSettings("amm", absolute_gamma=True),
    BranchSettings("constant", constant=0.25),
    BranchSettings("amm", include=("layer2*", "conv")),
    BranchSettings("amm", kernel="1x1"),
    BranchSettings("amm", kinds=("all",)),
]
ALL = [*MERGED, BranchSettings("aff"), BranchSettings("full"), BranchSettings("frozen")]


@pytest.mark.parametrize("settings", ALL, ids=str)
def test_every_trunk_starts_at_the_function_of_the_network_and_leaves_it_alone(
    network: nn.Module, probe: Tensor, settings: BranchSettings
) -> None:
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    trunk = opened(network, settings)
    with torch.no_grad():
        assert torch.equal(trunk.eval()(probe), network(probe))
        for parameter in trunk.parameters():
            parameter.add_(1)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert not any(parameter.requires_grad for parameter in network.parameters())


def expected_gate(settings: BranchSettings, gamma: float) -> float:
    if settings.gate == "imm":
        return 1.0
    if settings.gate == "constant":
        return settings.constant
    return 1 / (1 + math.exp(abs(gamma) if settings.absolute_gamma else gamma))


@pytest.mark.parametrize("settings", MERGED, ids=str)
def test_mergeable_trunks_close_to_a_network_of_the_same_function_and_size(
    network: nn.Module, probe: Tensor, settings: BranchSettings
) -> None:
    trunk = settle(opened(network, settings)).eval()
    closed, report = close_trunk(trunk, probe)
    assert report is not None and report.model is closed
    assert report.relative_diff is not None and report.relative_diff < 1e-4
    with torch.no_grad():
        torch.testing.assert_close(closed(probe), trunk(probe), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(closed(probe), network(probe), atol=1e-2)
    assert report.parameters_after == report.parameters_before == branches.count_parameters(network)
    assert report.parameters_hybrid == branches.count_parameters(trunk) > report.parameters_after
    for name, unit in branches.hybrid_units(trunk).items():
        merged = closed.get_submodule(name)
        assert isinstance(merged, branches.Folded)
        assert unit.norm is not None
        for channel, gamma in enumerate(unit.gamma.tolist()):
            expected = gamma + expected_gate(settings, gamma) * unit.norm.weight[channel].item()
            assert merged.gamma[channel].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_some_gammas_are_negative_so_that_the_absolute_gate_differs(network: nn.Module) -> None:
    gammas = [module.gamma for module in network.modules() if isinstance(module, branches.Folded)]
    assert any(bool((gamma < -0.1).any()) for gamma in gammas)


def test_include_limits_the_branches(network: nn.Module) -> None:
    units = branches.hybrid_units(opened(network, BranchSettings("amm", include=("layer2*", "conv"))))
    assert set(units) == {"conv", "layer2.0.conv1", "layer2.0.conv2"}
    assert len(branches.hybrid_units(opened(network, BranchSettings("amm")))) == 7


def test_include_that_matches_nothing_is_refused(network: nn.Module) -> None:
    with pytest.raises(InlayError, match=r"'layer9\*' matches none of the layers"):
        opened(network, BranchSettings("amm", include=("layer9*",)))


def test_a_backbone_that_cannot_take_branches_is_refused_before_training() -> None:
    pooling = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(InlayError, match=r"No layer of the network gets a branch"):
        check_backbone(pooling, BranchSettings("amm"), torch.zeros(2, 3, 8, 8))
    check_backbone(pooling, BranchSettings("full"), torch.zeros(2, 3, 8, 8))


def test_kinds_choose_layers_without_a_norm(network: nn.Module) -> None:
    with_head = nn.Sequential(network, nn.LazyLinear(3)).eval()
    task = tiny_task(quick())
    with_head(task.first_inputs(2))
    assert set(branches.hybrid_units(opened(with_head, BranchSettings("amm", kinds=("linear",))))) == {"1"}


def test_only_branches_are_trained(network: nn.Module) -> None:
    trunk = opened(network, BranchSettings("amm"))
    trained = {id(parameter) for parameter in trunk.parameters() if parameter.requires_grad}
    assert trained == {id(parameter) for parameter in branches.branch_parameters(trunk)}


def test_aff_is_kept_as_a_hybrid(network: nn.Module, probe: Tensor) -> None:
    trunk = settle(opened(network, BranchSettings("aff"))).train()
    reference = copy.deepcopy(trunk).eval()
    closed, report = close_trunk(trunk, probe)
    assert report is None and branches.is_hybrid(closed) and not closed.training
    assert not any(parameter.requires_grad for parameter in closed.parameters())
    with torch.no_grad():
        assert torch.equal(closed(probe), reference(probe))


@pytest.mark.parametrize("gate", ["imm", "aff", "amm", "constant", "full", "frozen"])
def test_an_aff_hybrid_takes_no_further_stage(network: nn.Module, probe: Tensor, gate: str) -> None:
    hybrid, _ = close_trunk(opened(network, BranchSettings("aff")), probe)
    settings = quick(changes={"branch.gate": gate}).branch
    with pytest.raises(InlayError, match=r"AFF .* cannot be merged.*branch\.gate=amm"):
        opened(starting_network(hybrid, settings, probe), settings)


def test_full_trains_the_network_itself(network: nn.Module, probe: Tensor) -> None:
    trunk = opened(network, BranchSettings("full"))
    assert all(parameter.requires_grad for parameter in trunk.parameters()) and not branches.is_hybrid(trunk)
    closed, report = close_trunk(trunk, probe)
    assert report is None and not any(parameter.requires_grad for parameter in closed.parameters())


@pytest.fixture(scope="module")
def unfolded() -> nn.Module:
    return build("resnet8", 1, torch.Generator().manual_seed(3)).requires_grad_(False).eval()


_SECOND_GROUP = {f"layer2.0.{part}" for n in (1, 2) for part in (f"conv{n}.weight", f"norm{n}.weight", f"norm{n}.bias")}


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        (("layer2*",), _SECOND_GROUP),
        (("layer2",), _SECOND_GROUP),
        (("layer2*", "conv"), {*_SECOND_GROUP, "conv.weight"}),
        (("layer?.0.norm1.bias",), {f"layer{n}.0.norm1.bias" for n in (1, 2, 3)}),
    ],
    ids=["a pattern", "a name", "two", "a question mark"],
)
def test_full_trains_what_is_included(unfolded: nn.Module, include: tuple[str, ...], expected: set[str]) -> None:
    trunk = opened(unfolded, BranchSettings("full", include=include))
    assert {name for name, parameter in trunk.named_parameters() if parameter.requires_grad} == expected


def test_full_refuses_a_pattern_that_matches_nothing(unfolded: nn.Module) -> None:
    settings = BranchSettings("full", include=("layer2*", "layer9*"))
    sentence = r"'layer9\*' in branch\.include matches no parameter; .*: conv, norm, layer1, layer2, layer3\."
    with pytest.raises(InlayError, match=sentence):
        opened(unfolded, settings)
    with pytest.raises(InlayError, match=sentence):
        check_backbone(unfolded, settings, torch.zeros(2, 1, 8, 8))


@pytest.mark.parametrize("gate", ["amm", "frozen"])
def test_a_stage_starts_from_the_folded_network(unfolded: nn.Module, probe: Tensor, gate: str) -> None:
    start = starting_network(unfolded, quick(changes={"branch.gate": gate}).branch, probe)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in start.modules())
    assert len(branches.gammas(start)) == 7
    with torch.no_grad():
        torch.testing.assert_close(start(probe), unfolded(probe))


def test_a_full_stage_starts_from_the_network_as_it_is(unfolded: nn.Module, probe: Tensor) -> None:
    assert starting_network(unfolded, BranchSettings("full"), probe) is unfolded


def test_a_merged_network_is_a_start_as_it_is(network: nn.Module, probe: Tensor) -> None:
    merged, _ = close_trunk(settle(opened(network, BranchSettings("amm"))), probe)
    start = starting_network(merged, BranchSettings("amm"), probe).state_dict()
    before = merged.state_dict()
    assert start.keys() == before.keys() and all(torch.equal(start[name], before[name]) for name in before)
    assert not torch.equal(before["conv.gamma"], network.state_dict()["conv.gamma"])


def test_frozen_trains_nothing(network: nn.Module) -> None:
    trunk = opened(network, BranchSettings("frozen"))
    assert not any(parameter.requires_grad for parameter in trunk.parameters()) and not branches.is_hybrid(trunk)


def test_novel_kernels_are_a_function_of_the_seed(network: nn.Module) -> None:
    kernels = [
        next(iter(branches.hybrid_units(opened(network, BranchSettings(), seed)).values())).novel.weight
        for seed in (1, 1, 2)
    ]
    assert torch.equal(kernels[0], kernels[1]) and not torch.equal(kernels[0], kernels[2])
