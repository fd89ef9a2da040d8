"""Networks drawn at random go the whole way: plan, attach, train, merge, load into the stock architecture, go back."""

import tempfile
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from branch_networks import hash_outside_branches
from inlay import branches
from inlay.branches import Folded, Gate, Targets, hybrid_units
from inlay.branches.example import floating_outputs
from inlay.branches.stock import stock_state_dict
from inlay.errors import InlayError
from network_comparison import gap, outputs, same, structure
from network_descriptions import LAYERED, TOKENWISE, Description
from random_networks import build, inputs
from two_paths import with_two_paths

ROUNDS, STEPS = 2, 3
MODEL, STOCK = 0, 1
EXAMPLE, PROBE, UNSEEN, TRAINING = 0, 1, 2, 3
GATES = [
    branches.gate("amm"),
    branches.gate("amm", absolute=True),
    branches.gate("imm"),
    branches.gate("constant", value=-0.5),
    branches.gate("aff"),
]
TARGETS = st.builds(
    Targets,
    include=st.sampled_from([None, None, None, ["block*"]]),
    kinds=st.sampled_from(["all", "all", None, None, ["conv-bn", "mlp", "conv"], [nn.Linear]]),
    depth=st.sampled_from([(0.0, 1.0), (0.0, 1.0), (0.0, 1.0), (0.0, 0.5), (0.5, 1.0)]),
    kernel=st.sampled_from(["same", "same", "same", "1x1"]),
    batch_norm=st.booleans(),
)

always_the_same = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(always_the_same, max_examples=120)
@given(LAYERED, TARGETS, st.sampled_from(GATES))
def test_random_layers_go_the_whole_way(description: Description, targets: Targets, gate: Gate) -> None:
    _walk(description, targets, gate)


@settings(always_the_same, max_examples=25)
@given(TOKENWISE, TARGETS, st.sampled_from(GATES))
def test_random_mlps_go_the_whole_way(description: Description, targets: Targets, gate: Gate) -> None:
    _walk(description, targets, gate)


def _walk(description: Description, targets: Targets, gate: Gate) -> None:
    model, example = build(description, MODEL), inputs(description, EXAMPLE)
    plan = branches.plan(model, example, targets)
    if not plan.units:
        with pytest.raises(InlayError, match="No layer of the network gets a branch"):
            branches.attach(model, example, gate, targets)
        return
    stages = [branches.fold(model, example)]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            before = hash_outside_branches(model)
            hybrid = _attached(model, example, gate, targets)
            assert hash_outside_branches(model) == before
            _check_plan(plan, hybrid)
            _check_start(description, model, stages[-1], hybrid)
            _check_training(description, hybrid)
            if not gate.mergeable:
                with pytest.raises(InlayError, match="cannot be merged"):
                    branches.merge(hybrid, example, history=folder)
                return
            report = branches.merge(hybrid, inputs(description, PROBE), history=folder)
            _check_merge(description, hybrid, report)
            model = report.model
            assert structure(model) == structure(stages[0])
            assert branches.count_parameters(model) == branches.count_parameters(stages[0])
            _check_stock(description, model)
            stages.append(model)
        for number, stage in enumerate(stages):
            earlier = branches.rollback(model, folder, number)
            assert hash_outside_branches(earlier) == hash_outside_branches(stage)


def _attached(model: nn.Module, example: Tensor, gate: Gate, targets: Targets) -> nn.Module:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "These layers stay frozen")
        return branches.attach(model, example, gate, targets, generator=torch.Generator().manual_seed(0))


def _check_plan(plan: branches.Plan, hybrid: nn.Module) -> None:
    units = hybrid_units(hybrid)
    planned = {row.name: row for row in plan.having("branch")}
    assert planned.keys() == units.keys()
    for name, unit in units.items():
        row = planned[name]
        assert row.unit is not None and row.unit.side == unit.side
        assert isinstance(unit.base, Folded) == (row.unit.kind in ("conv-bn", "linear-bn"))
        assert row.parameters == sum(parameter.numel() for parameter in unit.parameters() if parameter.requires_grad)


def _check_start(description: Description, model: nn.Module, folded: nn.Module, hybrid: nn.Module) -> None:
    images = inputs(description, UNSEEN)
    assert same(outputs(folded, images), outputs(hybrid, images))
    assert gap(outputs(model, images), outputs(hybrid, images)) < _allowed(description, 1e-5)


def _check_training(description: Description, hybrid: nn.Module) -> None:
    outside = hash_outside_branches(hybrid)
    parameters = branches.branch_parameters(hybrid)
    optimiser = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    hybrid.train()
    for step in range(STEPS):
        optimiser.zero_grad()
        returned = floating_outputs(hybrid(inputs(description, TRAINING + step)))
        torch.autograd.backward([torch.stack([(output - 1).square().mean() for output in returned]).sum()])
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
    hybrid.eval()
    assert hash_outside_branches(hybrid) == outside


def _check_merge(description: Description, hybrid: nn.Module, report: branches.MergeReport) -> None:
    images, allowed = inputs(description, UNSEEN), _allowed(description, 1e-4)
    assert report.relative_diff is not None and report.relative_diff < allowed
    assert report.relative_diff_float64 is not None and report.relative_diff_float64 < 1e-10
    assert gap(outputs(hybrid, images), outputs(report.model, images)) < allowed
    assert gap(outputs(with_two_paths(hybrid), images), outputs(report.model, images)) < allowed
    for name, unit in hybrid_units(hybrid).items():
        if unit.norm is not None:
            gamma = unit.gamma + unit.gate.scale(unit.gamma) * unit.norm.weight
            torch.testing.assert_close(report.model.get_submodule(name).gamma, gamma)


def _check_stock(description: Description, merged: nn.Module) -> None:
    try:
        weights = stock_state_dict(merged)
    except InlayError as error:
        assert "no place for their different biases" in str(error)
        assert description.shares_norms
        return
    stock, images = build(description, STOCK), inputs(description, UNSEEN)
    stock.load_state_dict(weights, strict=True)
    assert gap(outputs(merged, images), outputs(stock, images)) < _allowed(description, 1e-4)
    folded = branches.fold(stock, images, gammas=branches.gammas(merged))
    # Where a layer with a bias shares its batch norm with one without, the difference of their biases is rounded.
    if not description.shares_norms:
        assert hash_outside_branches(folded) == hash_outside_branches(merged)


def _allowed(description: Description, in_float32: float) -> float:
    return in_float32 if description.dtype == torch.float32 else 1e-10
