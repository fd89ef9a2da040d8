import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from branch_networks import (
    NETWORKS,
    Network,
    Pooled,
    same_state,
    train,
    trained,
)
from inlay.branches import (
    History,
    Targets,
    attach,
    count_parameters,
    fold,
    is_hybrid,
    merge,
    rollback,
)
from inlay.errors import InlayError

FLOAT64 = torch.float64
PLAIN = NETWORKS["conv2d"]
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def _state(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


@pytest.mark.parametrize(
    ("name", "storage"),
    [
        *((name, None) for name in ("conv2d", "shared norm", "1x1", "mlp", "no norm")),
        *((name, storage) for name in ("conv2d", "mlp") for storage in (torch.float16, torch.bfloat16)),
    ],
)
def test_three_rounds_roll_back_bit_for_bit(tmp_path: Path, name: str, storage: torch.dtype | None) -> None:
    network = NETWORKS[name]
    model = fold(network.model(), network.images())
    states = [_state(model)]
    for turn in range(3):
        generator = torch.Generator().manual_seed(turn)
        hybrid = train(attach(model, network.images(), targets=network.targets, generator=generator), network)
        report = merge(hybrid, network.images(), history=tmp_path / "stages", storage=storage)
        assert report.stage == turn + 1
        assert report.relative_diff is not None and report.relative_diff <= report.tolerance
        model = report.model
        states.append(_state(model))
        assert not same_state(states[-1], states[-2])
    for stage, state in enumerate(states):
        assert same_state(rollback(model, tmp_path / "stages", stage).state_dict(), state)
    assert same_state(model.state_dict(), states[-1])


def test_a_network_goes_on_from_the_stage_it_was_rolled_back_to(tmp_path: Path) -> None:
    first = merge(trained(PLAIN), history=tmp_path / "stages").model
    second = merge(train(attach(first, PLAIN.images()), PLAIN), history=tmp_path / "stages").model
    back = rollback(second, tmp_path / "stages", 1)
    History(tmp_path / "stages").truncate(1)
    report = merge(train(attach(back, PLAIN.images()), PLAIN), PLAIN.images(), history=tmp_path / "stages")
    assert report.stage == 2


@pytest.mark.parametrize(("storage", "allowed"), [(torch.float16, 5e-3), (torch.bfloat16, 5e-2), (FLOAT64, 1e-4)])
def test_deltas_are_stored_in_the_type_that_is_asked_for(tmp_path: Path, storage: torch.dtype, allowed: float) -> None:
    report = merge(trained(PLAIN), PLAIN.images(), history=tmp_path, storage=storage)
    assert report.tolerance == allowed
    assert report.relative_diff is not None and report.relative_diff <= allowed
    facts = History(tmp_path).facts(1)
    assert facts["storage"] == [str(storage).removeprefix("torch.")]
    assert facts["tolerance"] == allowed and facts["relative_diff"] == report.relative_diff
    assert facts["gates"] == dict.fromkeys(PLAIN.branches, "AMM(absolute=False)")
    assert all(parameter.dtype == torch.float32 for parameter in report.model.parameters())


def test_the_same_hybrid_is_not_merged_twice_into_one_history(tmp_path: Path) -> None:
    hybrid = trained(PLAIN)
    merge(hybrid, history=tmp_path / "stages")
    state = _state(hybrid)
    files = {path.name: path.read_bytes() for path in (tmp_path / "stages").iterdir()}
    with pytest.raises(InlayError, match="these branches may have been merged already"):
        merge(hybrid, history=tmp_path / "stages", inplace=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "stages").iterdir()} == files
    assert is_hybrid(hybrid) and same_state(state, hybrid.state_dict())


def test_the_history_of_another_network_is_refused(tmp_path: Path) -> None:
    merge(trained(PLAIN), history=tmp_path)
    other = NETWORKS["twice"]
    with pytest.raises(InlayError, match="belongs to another network"):
        merge(trained(other), history=tmp_path)
    assert History(tmp_path).stage_count == 1


def test_a_hybrid_inside_a_larger_network_records_its_own_tensors_alone(tmp_path: Path) -> None:
    hybrid = trained(PLAIN)
    whole = nn.Sequential(hybrid, nn.Linear(6, 2))
    report = merge(whole, PLAIN.images(), history=tmp_path)
    assert isinstance(report.model, nn.Sequential) and not is_hybrid(report.model)
    recorded = History(tmp_path).state(1)
    assert set(recorded) == {name for name in report.model.state_dict() if name.startswith("0.")}
    assert torch.equal(report.model.state_dict()["1.weight"], whole.state_dict()["1.weight"])
    assert same_state(report.model[0].state_dict(), merge(hybrid).model.state_dict())
    report.model.state_dict()["1.weight"].zero_()
    back = rollback(report.model, tmp_path, 0)
    assert torch.equal(back.state_dict()["1.weight"], torch.zeros(2, 6))


def test_a_hybrid_with_two_names_in_a_larger_network_is_recorded_under_both(tmp_path: Path) -> None:
    hybrid = trained(PLAIN)
    whole = nn.Sequential(hybrid, nn.Linear(6, 2))
    whole.add_module("body", hybrid)
    model = merge(whole, history=tmp_path).model
    assert model.get_submodule("0") is model.get_submodule("body")
    assert set(History(tmp_path).state(1)) == {name for name in model.state_dict() if not name.startswith("1.")}
    assert same_state(rollback(model, tmp_path, 1).state_dict(), model.state_dict())


class Counted(nn.Module):
    """Counts its images and averages its output: in training mode at the top, in eval mode below."""

    seen: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = Averaging()
        self.alias = self.body
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.seen += len(images)
        out: Tensor = self.body(images)
        return out


class Averaging(Pooled):
    """Averages its outputs, whatever the mode."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("last", torch.zeros(4), persistent=False)
        self.add_module("alias", self.layers)

    def forward(self, images: Tensor) -> Tensor:
        out = super().forward(images)
        self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
        self.last = out.detach()[0]
        return out


def test_buffers_that_moved_belong_to_the_stage(tmp_path: Path) -> None:
    network = Network(Counted, (3, 3, 6, 6), ("body.layers.0",))
    model = fold(network.model(), network.images())
    states = [_state(model)]
    for turn in range(2):
        hybrid = train(attach(model, network.images()), network)
        moved = hybrid.state_dict()["body.mean"].clone()
        report = merge(hybrid, network.images(), history=tmp_path)
        model = report.model
        assert model.state_dict()["seen"] == 9 * (turn + 1)
        assert torch.allclose(model.state_dict()["body.mean"], moved, rtol=1e-6)
        states.append(_state(model))
    for stage, state in enumerate(states):
        assert same_state(rollback(model, tmp_path, stage).state_dict(), state)


def test_modules_with_two_names_are_merged_under_both(tmp_path: Path) -> None:
    class Listed(nn.Module):
        """Its second block has two names, and the convolution of the first has too."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
            self.block = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
            self.all = nn.ModuleList([self.conv, self.block])

        def forward(self, images: Tensor) -> Tensor:
            out: Tensor = self.block(self.norm(self.conv(images)).relu())
            return out.mean(dim=(2, 3))

    network = Network(Listed, (3, 3, 8, 8), ("conv", "block.0"))
    base = fold(network.model(), network.images())
    report = merge(trained(network), network.images(7), history=tmp_path)
    model = report.model
    assert report.parameters_before == report.parameters_after == count_parameters(base)
    assert model.get_submodule("all.0") is model.get_submodule("conv")
    assert model.get_submodule("all.1.0") is model.get_submodule("block.0")
    assert model.state_dict().keys() == base.state_dict().keys()
    assert same_state(rollback(model, tmp_path, 0).state_dict(), base.state_dict())
    assert same_state(rollback(model, tmp_path, 1).state_dict(), model.state_dict())


def test_a_head_that_the_user_trained_is_not_in_the_history(tmp_path: Path) -> None:
    network = NETWORKS["mlp"]
    model = network.model()
    model.add_module("also_head", model.get_submodule("head"))
    targets = Targets(trainable=["head"])
    hybrid = attach(model, network.images(), targets=targets)
    optimiser = torch.optim.SGD([p for p in hybrid.parameters() if p.requires_grad], lr=0.1)
    for seed in range(3):
        optimiser.zero_grad()
        hybrid.train()(network.images(seed)).square().sum().backward()
        optimiser.step()
    head = hybrid.get_parameter("head.weight").detach().clone()
    assert not torch.equal(head, model.get_parameter("head.weight"))
    merged = merge(hybrid, network.images(), history=tmp_path).model
    assert torch.equal(merged.get_parameter("head.weight"), head)
    assert not any("head" in name for name in History(tmp_path).state(1))
    back = rollback(merged, tmp_path, 0)
    assert torch.equal(back.get_parameter("head.weight"), head)
    assert torch.equal(back.get_parameter("first.weight"), model.get_parameter("first.weight"))
    assert torch.equal(back.get_parameter("also_head.weight"), head)


def test_state_beyond_tensors_is_carried_along(tmp_path: Path) -> None:
    class Noted(Pooled):
        """Saves a note with its state."""

        note = ""

        def get_extra_state(self) -> Any:
            return {"note": self.note}

        def set_extra_state(self, state: Any) -> None:
            self.note = state["note"]

    network = Network(lambda: Noted(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (3, 3, 6, 6), ("layers.0",))
    hybrid = trained(network)
    hybrid.note = "kept"  # type: ignore[assignment]
    model = merge(hybrid, network.images(), history=tmp_path).model
    assert model.note == "kept"
    assert set(History(tmp_path).state(1)) == {"layers.0.weight", "layers.0.bias", "layers.0.gamma"}
