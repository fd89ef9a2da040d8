import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from branch_networks import NETWORKS, Network, Pooled, same_state, train, trained
from inlay.backbones import build
from inlay.branches import Gate, Targets, attach, describe, fold, gammas, hybrid_units, merge, rebuild
from inlay.branches import gate as find_gate
from inlay.errors import InlayError

PLAIN = NETWORKS["conv2d"]
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
GATES = [find_gate("amm"), find_gate("aff"), find_gate("amm", absolute=True), find_gate("constant", value=0.4)]


def _round_trip(model: nn.Module, network: Network) -> nn.Module:
    """Describe a network, build it anew from other weights, and load its state."""
    description = json.loads(json.dumps(describe(model)))
    with torch.random.fork_rng():
        torch.manual_seed(99)
        again = rebuild(network.build(), description, network.images(3))
    again.load_state_dict(model.state_dict(), strict=True)
    return again


def _facts(model: nn.Module) -> list[tuple[str, type, bool]]:
    return [(name, type(module), module.training) for name, module in model.train().named_modules()]


@every_network
def test_folded_networks_survive_the_round_trip(network: Network) -> None:
    folded = fold(network.model(), network.images())
    again = _round_trip(folded, network)
    assert torch.equal(again(network.images(5)), folded(network.images(5)))
    assert not any(parameter.requires_grad for parameter in again.parameters())
    assert same_state(gammas(again), gammas(folded))
    assert describe(again) == describe(folded)


@pytest.mark.parametrize(
    ("name", "gate"),
    [*((name, GATES[0]) for name in NETWORKS), *((name, gate) for name in ("conv2d", "mlp") for gate in GATES[1:])],
    ids=str,
)
def test_hybrids_survive_the_round_trip(name: str, gate: Gate) -> None:
    network = NETWORKS[name]
    hybrid = trained(network, gate).eval()
    again = _round_trip(hybrid, network)
    assert torch.equal(again(network.images(5)), hybrid(network.images(5)))
    assert {unit.gate for unit in hybrid_units(again).values()} == {gate}
    trainable = {name for name, value in hybrid.named_parameters() if value.requires_grad}
    assert {name for name, value in again.named_parameters() if value.requires_grad} == trainable
    assert describe(again) == describe(hybrid)
    assert _facts(again) == _facts(hybrid)


@every_network
def test_a_rebuilt_hybrid_trains_and_merges_as_the_one_it_was(network: Network) -> None:
    hybrid = trained(network)
    again = _round_trip(hybrid, network)
    ours, theirs = (merge(train(model, network), network.images()).model for model in (hybrid, again))
    assert same_state(ours.state_dict(), theirs.state_dict())


@every_network
def test_merged_networks_are_described_as_folded(network: Network) -> None:
    merged = merge(trained(network)).model
    assert describe(merged) == describe(fold(network.model(), network.images()))
    again = _round_trip(merged, network)
    assert torch.equal(again(network.images(5)), merged(network.images(5)))


def test_what_a_description_says() -> None:
    assert describe(fold(PLAIN.model(), PLAIN.images())) == {
        "kind": "folded",
        "gate": None,
        "units": list(PLAIN.branches),
        "norms": [],
        "branches": [],
        "kernel": "same",
        "batch_norm": True,
        "trainable": [],
    }
    targets = Targets(include=["layers.0"], kernel="1x1", batch_norm=False)
    described = describe(attach(PLAIN.model(), PLAIN.images(), find_gate("amm", absolute=True), targets))
    assert described == {
        "kind": "hybrid",
        "gate": {"name": "amm", "options": {"absolute": True}},
        "units": list(PLAIN.branches),
        "norms": [],
        "branches": ["layers.0"],
        "kernel": "1x1",
        "batch_norm": False,
        "trainable": [],
    }


class Headed(nn.Module):
    """A head with a batch norm that is the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Pooled(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 2))

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(images))
        return out


def test_what_is_left_to_the_user_stays_so() -> None:
    network = Network(Headed, (4, 3, 6, 6), ("body.layers.0",), Targets(trainable=["hea?"]))
    hybrid = trained(network).eval()
    again = _round_trip(hybrid, network)
    assert (describe(again)["trainable"], describe(again)["norms"]) == (["hea?"], ["head.1"])
    assert torch.equal(again(network.images(5)), hybrid(network.images(5)))
    assert all(parameter.requires_grad for parameter in again.get_submodule("head").parameters())
    assert _facts(again) == _facts(hybrid)
    merged = merge(hybrid).model
    assert torch.equal(_round_trip(merged, network)(network.images(5)), merged(network.images(5)))


def test_a_backbone_with_branches_in_one_part_survives_the_round_trip() -> None:
    network = Network(lambda: build("resnet8"), (2, 3, 8, 8), (), Targets(include=["layer2*"]))
    hybrid = attach(network.model(), network.images(), targets=network.targets)
    assert torch.equal(_round_trip(hybrid, network)(network.images(5)), hybrid(network.images(5)))


def test_rebuilding_draws_no_global_random_numbers_and_accepts_any_weights() -> None:
    backbone = build("resnet8", generator=torch.Generator().manual_seed(0))
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    description = describe(attach(backbone.eval(), images))
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.fill_(torch.nan)
    state = torch.get_rng_state()
    again = rebuild(backbone.train(), description, images)
    assert torch.equal(state, torch.get_rng_state())
    assert len(hybrid_units(again)) == 7
    assert all(module.training for module in backbone.modules())


def test_weights_that_look_merged_are_rebuilt_all_the_same() -> None:
    backbone = Pooled(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    folded = fold(backbone.eval(), torch.ones(1, 3, 6, 6))
    backbone.state_dict()["layers.1.running_var"].fill_(1 - 1e-5)
    again = rebuild(backbone, describe(folded), torch.ones(1, 3, 6, 6))
    again.load_state_dict(folded.state_dict())
    assert torch.equal(gammas(again)["layers.0"], torch.ones(4))


def test_branches_that_differ_are_refused() -> None:
    hybrid = attach(PLAIN.model(), PLAIN.images())
    hybrid_units(hybrid)["layers.0"].gate = find_gate("imm")
    with pytest.raises(ValueError, match="differ in gate or shape"):
        describe(hybrid)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"units": ["conv"]}, "has a unit 'conv', but this backbone has layers.0.*build the backbone that was saved"),
        ({"branches": ["layer9"]}, "has a unit 'layer9'"),
        ({"units": ["layers.0"]}, r"do not both have 'layers\.4' as a batch norm.*build the backbone"),
        ({"kind": "plain"}, "kind 'plain'"),
        ({"kind": "hybrid"}, "kind 'hybrid' with gate None"),
        ({"gate": {"name": "amm", "options": {}}}, "kind 'folded' with gate"),
        ({"kind": "hybrid", "gate": {"name": "gru", "options": {}}}, "Unknown gate 'gru'"),
        ({"kind": "hybrid", "gate": {"name": "amm"}}, "lacks the entry 'options'"),
        ({"kernel": "2x2"}, "Unknown kernel '2x2'"),
    ],
    ids=str,
)
def test_descriptions_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    description = describe(fold(PLAIN.model(), PLAIN.images())) | change
    with pytest.raises(InlayError, match=message):
        rebuild(PLAIN.model(), description, PLAIN.images())


def test_a_backbone_without_the_batch_norms_is_refused() -> None:
    description = describe(fold(NETWORKS["no batch norm in the branch"].model(), torch.ones(1, 3, 6, 6)))
    with pytest.raises(InlayError, match=r"has a unit 'layers\.0'"):
        rebuild(Pooled(nn.Conv2d(3, 4, 3), nn.ReLU()), description, torch.ones(1, 3, 6, 6))


@pytest.mark.parametrize("entry", ["kind", "gate", "units", "norms", "branches", "kernel", "batch_norm", "trainable"])
def test_missing_entries_are_refused(entry: str) -> None:
    description = describe(fold(PLAIN.model(), PLAIN.images()))
    del description[entry]
    with pytest.raises(InlayError, match=f"lacks the entry '{entry}'"):
        rebuild(PLAIN.model(), description, PLAIN.images())
