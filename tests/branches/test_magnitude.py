import copy
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from branch_networks import NETWORKS, Network, trained
from inlay.branches import Gate, HybridUnit, attach, gate, hybrid_units, merge
from inlay.branches.magnitude import UnitMagnitude, branch_magnitudes
from inlay.errors import InlayError

GATES = [gate("imm"), gate("aff"), gate("amm"), gate("amm", absolute=True), gate("constant", value=-0.7)]
every_gate = pytest.mark.parametrize("chosen", GATES, ids=str)


def _slow_linear(layer: Any, row: list[float]) -> list[float]:
    bias = [0.0] * layer.out_features if layer.bias is None else layer.bias.tolist()
    return [
        b + sum(w * x for w, x in zip(weights, row, strict=True))
        for b, weights in zip(bias, layer.weight.tolist(), strict=True)
    ]


def _slow_branch(unit: HybridUnit, row: list[float]) -> list[float]:
    values = _slow_linear(unit.novel, row)
    norm: Any = unit.norm
    if norm is None:
        return values
    means, variances = norm.running_mean.tolist(), norm.running_var.tolist()
    return [
        (value - means[c]) / math.sqrt(variances[c] + norm.eps) * norm.weight[c].item() + norm.bias[c].item()
        for c, value in enumerate(values)
    ]


def _slow_gate(unit: HybridUnit, base: float, channel: int) -> float:
    gamma = unit.gamma[channel].item()
    if unit.gate == gate("amm", absolute=True):
        return 1 / (1 + math.exp(abs(gamma)))
    return {"imm": 1.0, "aff": 1 / (1 + math.exp(base)), "amm": 1 / (1 + math.exp(gamma)), "constant": -0.7}[
        unit.gate.name
    ]


@every_gate
def test_two_linear_units_by_hand(chosen: Gate) -> None:
    network = NETWORKS["linear"]
    hybrid = trained(network, chosen, torch.float64).eval()
    images = network.images(seed=3, dtype=torch.float64)
    sums = {name: [0.0, 0.0, 0.0] for name in network.branches}
    for row in images.tolist():
        values = row
        for name in network.branches:
            unit = hybrid.get_submodule(name)
            assert isinstance(unit, HybridUnit)
            base, novel = _slow_linear(unit.base, values), _slow_branch(unit, values)
            gated = [_slow_gate(unit, base[c], c) * value for c, value in enumerate(novel)]
            for part, response in enumerate((base, novel, gated)):
                sums[name][part] += max(abs(value) for value in response)
            values = [max(b + g, 0.0) for b, g in zip(base, gated, strict=True)]
    found = branch_magnitudes(hybrid, [images[:4], images[4:]]).units
    assert [unit.name for unit in found] == list(network.branches)
    for measured in found:
        means = [total / len(images) for total in sums[measured.name]]
        assert (measured.base, measured.novel, measured.gated) == pytest.approx(means, rel=1e-10)
        assert measured.base > 0 and measured.novel > 0


def _slow_units(hybrid: nn.Module, images: Tensor) -> list[UnitMagnitude]:
    """Measure image by image what each unit adds to its base, as it is and with plain addition for a gate."""
    units = hybrid_units(hybrid)
    seen: dict[str, list[Tensor]] = {name: [] for name in units}
    hooks = [
        unit.register_forward_pre_hook(lambda _, arguments, seen_here=seen[name]: seen_here.append(arguments[0]))
        for name, unit in units.items()
    ]
    for image in images:
        hybrid(image[None])
    for hook in hooks:
        hook.remove()
    found = []
    for name, unit in units.items():
        ungated = copy.deepcopy(unit)
        ungated.gate = gate("imm")
        responses = [(unit.base(x), ungated(x) - unit.base(x), unit(x) - unit.base(x)) for x in seen[name]]
        largest = [[max(abs(v) for v in part.flatten().tolist()) for part in parts] for parts in responses]
        base, novel, gated = (sum(column) / len(column) for column in zip(*largest, strict=True))
        found.append(UnitMagnitude(name, base, novel, gated))
    return found


@every_gate
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
def test_every_kind_of_unit_against_what_it_adds_to_its_base(network: Network, chosen: Gate) -> None:
    hybrid = trained(network, chosen, torch.float64).eval()
    images = network.images(seed=3, dtype=torch.float64)
    found = branch_magnitudes(hybrid, [images[:1], images[1:]]).units
    expected = _slow_units(hybrid, images)
    assert [unit.name for unit in found] == [unit.name for unit in expected]
    for unit, slow in zip(found, expected, strict=True):
        assert (unit.base, unit.novel, unit.gated) == pytest.approx((slow.base, slow.novel, slow.gated), rel=1e-9)


def test_a_branch_at_its_start_adds_nothing() -> None:
    network = NETWORKS["conv2d"]
    hybrid = attach(network.model(), network.images(), "amm")
    for unit in branch_magnitudes(hybrid, [network.images()]).units:
        assert unit.base > 0 and unit.novel == unit.gated == 0


def test_a_small_branch_beside_a_large_base_is_not_lost() -> None:
    base = nn.Linear(1, 1, bias=False).requires_grad_(False)
    unit = HybridUnit(base, gate("aff"), torch.ones(1), batch_norm=False)
    nn.init.constant_(unit.base.weight, -1e6)
    nn.init.constant_(unit.novel.weight, 1e-3)
    (found,) = branch_magnitudes(nn.Sequential(unit).eval(), [torch.ones(1, 1)]).units
    assert found.gated == pytest.approx(1e-3, rel=1e-6)


def _hooks(hybrid: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in hybrid.modules())


@pytest.mark.parametrize("fails", [False, True])
def test_the_hybrid_is_left_as_it_was(fails: bool) -> None:
    network = NETWORKS["conv2d"]
    hybrid = trained(network, "amm").eval()
    before, outputs = copy.deepcopy(hybrid.state_dict()), hybrid(network.images())
    if fails:
        with pytest.raises(InlayError, match="fails on the batch"):
            branch_magnitudes(hybrid, [network.images(), torch.ones(2, 2)])
    else:
        branch_magnitudes(hybrid, [network.images()])
    assert _hooks(hybrid) == 0 and not hybrid.training
    assert all(torch.equal(value, before[name]) for name, value in hybrid.state_dict().items())
    assert torch.equal(hybrid(network.images()), outputs)


def test_magnitudes_are_written_as_json() -> None:
    network = NETWORKS["linear"]
    found = branch_magnitudes(trained(network).eval(), [network.images()])
    written = json.loads(json.dumps(found.to_json()))
    assert [UnitMagnitude(**unit) for unit in written["units"]] == list(found.units)


def test_what_cannot_be_measured_is_refused() -> None:
    network = NETWORKS["conv2d"]
    hybrid, images = trained(network).eval(), network.images()
    with pytest.raises(InlayError, match="no branches"):
        branch_magnitudes(merge(hybrid, images).model, [images])
    with pytest.raises(InlayError, match="saw no images"):
        branch_magnitudes(hybrid, [])
    with pytest.raises(InlayError, match=r"call hybrid\.eval\(\) first"):
        branch_magnitudes(hybrid.train(), [images])
