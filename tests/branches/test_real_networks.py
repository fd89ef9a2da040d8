"""Every real network goes the whole way: attach, train, merge, load into the stock architecture, roll back."""

import copy
import math
from collections import Counter
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from benchmarks.networks import Network, small_networks, trained
from torch import Tensor, nn

from branch_networks import branch_tensors, hash_outside_branches
from inlay import branches
from inlay.branches import Gate, Targets, hybrid_units
from inlay.branches.example import floating_outputs
from inlay.branches.stock import stock_state_dict
from inlay.errors import InlayError
from network_comparison import gap, outputs, same, structure
from two_paths import with_two_paths

NETWORKS = {network.name: network for network in small_networks()}
ALL = Targets(kinds="all")
POINTWISE = Targets(kernel="1x1")
AMM = branches.gate("amm")
STEPS, BATCH = 3, 4

# Units by kind, counted in the architectures: a sum is stem, blocks, shortcuts and top, in this order.
UNITS = {
    "resnet8": {"conv-bn": 1 + 3 * 2},
    "resnet18": {"conv-bn": 1 + 8 * 2},
    "resnet18-1x1": {"conv-bn": 1 + 8 * 2 + 3},
    "resnet-basic": {"conv-bn": 1 + 3 * 2 + 1, "linear": 1},
    "resnet-bottleneck": {"conv-bn": 1 + 3 * 3 + 2, "linear": 1},
    # Each block squeezes and excites with two convolutions.
    "regnet-y": {"conv-bn": 1 + 3 * 3 + 2, "conv": 3 * 2, "linear": 1},
    # Patches, one depthwise convolution per block, one step down.
    "convnext": {"conv": 1 + 3 + 1, "mlp": 3 * 2, "linear": 1},
    "convnextv2": {"conv": 1 + 3 + 1, "mlp": 3 * 2, "linear": 1},
    "mobilenetv2": {"conv-bn": 3 + 16 * 3 + 1, "linear": 1},
    # The first block has nothing to expand.
    "efficientnet": {"conv-bn": 1 + 8 * 3 - 1 + 1, "conv": 8 * 2, "linear": 1},
    "efficientnet-lite0": {"conv-bn": 1 + 16 * 3 - 1 + 1, "linear": 1},
    # Query, key, value and output of the attention in each block, and the head.
    "vit": {"conv": 1, "mlp": 2 * 2, "linear": 2 * 4 + 1},
    "dinov2": {"conv": 1, "mlp": 2 * 2, "linear": 2 * 4 + 1},
    # Two layers of a gated MLP read the norm.
    "dinov2-swiglu": {"conv": 1, "mlp": 2 * 3, "linear": 2 * 4 + 1},
    "swin": {"conv": 1, "mlp": 3 * 2, "linear": 3 * 4 + 1 + 1},
    # The norms come after the MLPs, and the attention computes its position bias with two more layers.
    "swinv2": {"conv": 1, "linear": 3 * (4 + 2 + 2) + 1 + 1},
}
GATED_BY_NORM = ("conv-bn", "linear-bn", "mlp")
WITHOUT_NORMS = [name for name, kinds in UNITS.items() if not any(kind in GATED_BY_NORM for kind in kinds)]
NORMED_THROUGHOUT = [name for name, kinds in UNITS.items() if all(kind in GATED_BY_NORM for kind in kinds)]


@dataclass(frozen=True)
class Case:
    """A network, and the branches that it gets."""

    network: str
    targets: Targets | None = None
    gate: Gate = AMM

    def __str__(self) -> str:
        """Give the name of the test."""
        targets = {None: "normed", ALL: "all", POINTWISE: "1x1"}[self.targets]
        return f"{self.network} {targets} {self.gate}"


CASES = [
    *(Case(name) for name in UNITS if name not in WITHOUT_NORMS),
    *(Case(name, ALL) for name in UNITS if name not in NORMED_THROUGHOUT),
    *(Case(name, POINTWISE) for name in ("resnet8", "regnet-y")),
    *(
        Case(name, ALL, gate)
        for name in ("regnet-y", "swin")
        for gate in (branches.gate("imm"), branches.gate("constant", value=0.3), branches.gate("amm", absolute=True))
    ),
]


@dataclass(frozen=True)
class Walk:
    """What came of one case; outputs are those for images that neither the training nor the merge has seen.

    Attributes:
        original: Outputs of the network as it was.
        folded: The folded network.
        start: Outputs of the hybrid before training.
        hybrid: The hybrid after training.
        outside: Hash of what is outside the branches, before and after training.
        report: What the merge with a history reported.
        hybrid64: The hybrid in float64 after training.
        merged64: What it is merged into.
        rolled_back: The merged network back at stage 0.
    """

    case: Case
    images: Tensor
    original: list[Tensor]
    folded: nn.Module
    plan: branches.Plan
    start: list[Tensor]
    hybrid: nn.Module
    outside: tuple[str, str]
    report: branches.MergeReport
    hybrid64: nn.Module
    merged64: nn.Module
    rolled_back: nn.Module


@cache
def _model(name: str) -> nn.Module:
    return trained(NETWORKS[name], torch.Generator().manual_seed(1))


@cache
def _folded(name: str) -> nn.Module:
    return branches.fold(_model(name), NETWORKS[name].example(2))


@pytest.fixture(scope="module", params=CASES, ids=str)
def walk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    case: Case = request.param
    network, model = NETWORKS[case.network], _model(case.network)
    images, probe = network.example(4).chunk(2)
    hybrid = _attached(case, model, network)
    start, outside = outputs(hybrid, images), hash_outside_branches(hybrid)
    _train(hybrid, network)
    history = tmp_path_factory.mktemp("stages")
    report = branches.merge(hybrid, probe, history=history)
    hybrid64 = copy.deepcopy(hybrid).double()
    return Walk(
        case=case,
        images=images,
        original=outputs(model, images),
        folded=_folded(case.network),
        plan=branches.plan(model, network.example(2), case.targets),
        start=start,
        hybrid=hybrid,
        outside=(outside, hash_outside_branches(hybrid)),
        report=report,
        hybrid64=hybrid64,
        merged64=branches.merge(hybrid64).model,
        rolled_back=branches.rollback(report.model, history, stage=0),
    )


def test_the_layers_that_the_architecture_has_get_a_branch(walk: Walk) -> None:
    units = UNITS[walk.case.network]
    normed = walk.case.targets is not ALL
    expected = {kind: count for kind, count in units.items() if kind in GATED_BY_NORM or not normed}
    assert Counter(unit.kind for unit in walk.plan.units) == expected
    assert {unit.name for unit in walk.plan.units} == hybrid_units(walk.hybrid).keys()
    assert not walk.plan.having("refused")


def test_attaching_leaves_the_outputs_as_they_are(walk: Walk) -> None:
    assert same(outputs(walk.folded, walk.images), walk.start)
    assert gap(walk.original, walk.start) < 1e-5


def test_training_moves_every_branch_and_its_statistics(walk: Walk) -> None:
    after = outputs(walk.hybrid, walk.images)
    assert 0.01 < gap(walk.start, after) < math.inf
    for unit in hybrid_units(walk.hybrid).values():
        assert all(part.any() for part in unit.delta().values())
        if unit.norm is not None:
            assert unit.norm.running_mean is not None and unit.norm.running_var is not None
            assert unit.norm.running_mean.any() and (unit.norm.running_var != 1).any()
            assert unit.norm.num_batches_tracked == STEPS


def test_training_leaves_everything_else_alone(walk: Walk) -> None:
    assert walk.outside[0] == walk.outside[1]


def test_the_merge_is_exact(walk: Walk) -> None:
    report = walk.report
    assert report.relative_diff is not None and report.relative_diff_float64 is not None
    assert report.relative_diff < 1e-4 and report.relative_diff_float64 < 1e-10
    assert gap(outputs(walk.hybrid, walk.images), outputs(report.model, walk.images)) < 1e-4
    images64, merged64 = walk.images.double(), outputs(walk.merged64, walk.images.double())
    assert gap(outputs(walk.hybrid64, images64), merged64) < 1e-10
    assert gap(outputs(with_two_paths(walk.hybrid64), images64), merged64) < 1e-10


def test_the_merged_network_is_built_like_the_folded_one(walk: Walk) -> None:
    merged = walk.report.model
    assert structure(merged) == structure(walk.folded)
    parameters = branches.count_parameters(walk.folded)
    assert branches.count_parameters(merged) == walk.report.parameters_after == parameters
    assert walk.report.parameters_hybrid == parameters + sum(row.parameters for row in walk.plan.rows)


def test_the_stock_architecture_loads_the_merged_network(walk: Walk) -> None:
    stock = NETWORKS[walk.case.network].stock().eval()
    stock.load_state_dict(stock_state_dict(walk.report.model), strict=True)
    assert gap(outputs(walk.report.model, walk.images), outputs(stock, walk.images)) < 1e-4
    stock.double().load_state_dict(stock_state_dict(walk.merged64), strict=True)
    images64 = walk.images.double()
    assert gap(outputs(walk.merged64, images64), outputs(stock, images64)) < 1e-10


def test_rolling_back_gives_the_folded_network_bit_for_bit(walk: Walk) -> None:
    assert structure(walk.rolled_back) == structure(walk.folded)
    assert hash_outside_branches(walk.rolled_back) == hash_outside_branches(walk.folded)
    assert hash_outside_branches(walk.rolled_back) != hash_outside_branches(walk.report.model)


def test_every_network_has_a_count_of_units() -> None:
    assert UNITS.keys() == NETWORKS.keys()


@pytest.mark.parametrize("name", [name for name, kinds in UNITS.items() if "conv-bn" in kinds])
def test_folding_is_exact_in_float64(name: str) -> None:
    model, images = copy.deepcopy(_model(name)).double(), NETWORKS[name].example(4).double()
    assert gap(outputs(model, images), outputs(branches.fold(model, images[:2]), images)) < 1e-10


@pytest.mark.parametrize("name", WITHOUT_NORMS)
def test_a_network_without_a_norm_that_gates_is_refused(name: str) -> None:
    with pytest.raises(InlayError, match="No layer of the network gets a branch"):
        branches.attach(_model(name), NETWORKS[name].example(2))


@pytest.mark.parametrize("name", NORMED_THROUGHOUT)
def test_all_kinds_are_those_with_norms_where_there_is_no_other(name: str) -> None:
    model, example = _model(name), NETWORKS[name].example(2)
    assert branches.plan(model, example, ALL) == branches.plan(model, example)


@pytest.mark.parametrize(("name", "targets"), [("efficientnet-lite0", None), ("vit", None), ("vit", ALL)], ids=str)
def test_aff_trains_but_does_not_merge(name: str, targets: Targets | None) -> None:
    network = NETWORKS[name]
    images = network.example(2)
    hybrid = _attached(Case(name, targets, branches.gate("aff")), _model(name), network)
    start, outside = outputs(hybrid, images), hash_outside_branches(hybrid)
    assert same(outputs(_folded(name), images), start)
    _train(hybrid, network)
    assert hash_outside_branches(hybrid) == outside
    before = outputs(hybrid, images)
    assert gap(start, before) > 0.01
    state = {key: value.clone() for key, value in branch_tensors(hybrid).items()}
    with pytest.raises(InlayError, match="cannot be merged"):
        branches.merge(hybrid, images)
    assert hash_outside_branches(hybrid) == outside
    assert all(torch.equal(state[key], value) for key, value in branch_tensors(hybrid).items())
    assert same(before, outputs(hybrid, images))


def _attached(case: Case, model: nn.Module, network: Network) -> nn.Module:
    generator = torch.Generator().manual_seed(2)
    return branches.attach(model, network.example(2), case.gate, case.targets, generator=generator)


def _train(hybrid: nn.Module, network: Network) -> None:
    """Take steps of a user's training with labels, and leave the hybrid in eval mode."""
    hybrid.train()
    optimiser = torch.optim.SGD(branches.branch_parameters(hybrid), lr=0.05, momentum=0.9)
    for images in network.example(STEPS * BATCH).chunk(STEPS):
        logits = floating_outputs(hybrid(images))[0]
        optimiser.zero_grad()
        torch.autograd.backward([nn.functional.cross_entropy(logits, torch.arange(BATCH))])
        nn.utils.clip_grad_norm_(branches.branch_parameters(hybrid), 1.0)
        optimiser.step()
    hybrid.eval()
