import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inlay.backbones import build
from inlay.branches import attach, branch_parameters, describe, fold, hybrid_units, merge, rebuild
from inlay.branches import gate as find_gate
from inlay.branches.gates import Gate
from inlay.errors import InlayError


def _images(seed: int = 0) -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def _folded(name: str = "resnet8") -> nn.Module:
    network = build(name, generator=torch.Generator().manual_seed(0))
    network(_images())
    return fold(network, _images())


def _trained(gate: Gate, include: list[str] | None = None) -> nn.Module:
    hybrid = attach(_folded(), gate, include=include, generator=torch.Generator().manual_seed(1)).train()
    optimiser = torch.optim.SGD(branch_parameters(hybrid), lr=0.1)
    for step in range(2):
        optimiser.zero_grad()
        torch.autograd.backward([hybrid(_images(step)).square().mean()])
        optimiser.step()
    return hybrid.eval()


def _round_trip(model: nn.Module, name: str = "resnet8") -> nn.Module:
    description = json.loads(json.dumps(describe(model)))
    again = rebuild(build(name, generator=torch.Generator().manual_seed(99)), description, _images(3)[:1])
    again.load_state_dict(model.state_dict(), strict=True)
    return again


def test_folded_description_names_all_units() -> None:
    description = describe(_folded())
    assert (description["kind"], description["gate"], description["branches"]) == ("folded", None, [])
    convs = [name for name, module in build("resnet8").named_modules() if isinstance(module, nn.Conv2d)]
    assert description["units"] == convs


@pytest.mark.parametrize("name", ["resnet8", "resnet18-1x1"])
def test_folded_network_survives_the_round_trip(name: str) -> None:
    folded = _folded(name)
    again = _round_trip(folded, name)
    assert torch.equal(again(_images(5)), folded(_images(5)))
    assert not any(parameter.requires_grad for parameter in again.parameters())


@pytest.mark.parametrize("include", [None, ["layer2*"]])
@pytest.mark.parametrize(
    "gate",
    [find_gate("aff"), find_gate("imm"), find_gate("amm", absolute=True), find_gate("constant", value=0.4)],
    ids=str,
)
def test_hybrid_survives_the_round_trip(gate: Gate, include: list[str] | None) -> None:
    hybrid = _trained(gate, include)
    again = _round_trip(hybrid)
    assert torch.equal(again(_images(5)), hybrid(_images(5)))
    assert list(hybrid_units(again)) == list(hybrid_units(hybrid))
    assert {unit.gate for unit in hybrid_units(again).values()} == {gate}
    trainable = {name for name, value in hybrid.named_parameters() if value.requires_grad}
    assert {name for name, value in again.named_parameters() if value.requires_grad} == trainable


def test_merged_network_is_described_as_folded() -> None:
    merged = merge(_trained(find_gate("amm"))).model
    assert describe(merged) == describe(_folded())
    assert torch.equal(_round_trip(merged)(_images(5)), merged(_images(5)))


def test_rebuilding_draws_no_global_random_numbers_and_accepts_any_weights() -> None:
    backbone = build("resnet8")
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.fill_(torch.nan)
    state = torch.get_rng_state()
    again = rebuild(backbone, describe(_trained(find_gate("amm"))), _images())
    assert torch.equal(state, torch.get_rng_state())
    assert len(hybrid_units(again)) == 7


def test_plain_networks_are_refused() -> None:
    with pytest.raises(InlayError, match="fold it first"):
        describe(build("resnet8"))


def test_branches_with_different_gates_are_refused() -> None:
    hybrid = _trained(find_gate("amm"))
    hybrid_units(hybrid)["conv"].gate = find_gate("imm")
    with pytest.raises(ValueError, match="different gates"):
        describe(hybrid)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"units": ["conv"]}, "build the backbone that was saved"),
        ({"branches": ["layer9"]}, "build the backbone that was saved"),
        ({"kind": "plain"}, "kind 'plain'"),
        ({"kind": "hybrid"}, "kind 'hybrid' with gate None"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InlayError, match=message):
        rebuild(build("resnet8"), describe(_folded()) | change, _images())


def test_missing_entries_are_refused() -> None:
    with pytest.raises(InlayError, match="lacks the entry 'gate'"):
        rebuild(build("resnet8"), {"kind": "folded"}, _images())
