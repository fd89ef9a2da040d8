import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from inlay.branches import attach
from inlay.branches.delta import applied, fingerprint, moved, rounded
from inlay.branches.history import History
from inlay.branches.rollback import rollback
from inlay.errors import InlayError


class _Network(nn.Module):
    """A trunk that the history tracks, and a head that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.trunk(images).mean((2, 3))
        return self.head(features)  # type: ignore[no-any-return]


def _network() -> _Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _Network().eval()


def _tracked(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if name.startswith("trunk.")}


def _three_stages(model: nn.Module, folder: Path, storage: torch.dtype | None = None) -> list[dict[str, Tensor]]:
    """Move the network itself through three stages; return what it tracked before and after each."""
    history = History(folder)
    states = [{name: tensor.clone() for name, tensor in _tracked(model).items()}]
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        delta: dict[str, Tensor] = {
            # Above zero, as running variances must stay.
            name: torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
            for name, tensor in states[-1].items()
            if tensor.is_floating_point()
        }
        delta["trunk.1.num_batches_tracked"] = torch.tensor(seed + 1)
        stored = rounded(delta, states[-1], storage)
        history.record(states[-1], stored, {})
        states.append(applied(states[-1], stored))
        model.load_state_dict(states[-1], strict=False)
    return states


@pytest.mark.parametrize("storage", [None, torch.float16])
def test_every_stage_comes_back_bit_for_bit(tmp_path: Path, storage: torch.dtype | None) -> None:
    model = _network()
    states = _three_stages(model, tmp_path, storage)
    images = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    outputs = []
    for number in (2, 0, 3, 1):
        earlier = rollback(model, tmp_path if number else str(tmp_path), number)
        assert moved(states[number], _tracked(earlier)) == {}
        outputs.append(earlier(images))
        assert outputs[-1].isfinite().all()
    assert all(not torch.equal(a, b) for i, a in enumerate(outputs) for b in outputs[:i])
    assert moved(states[3], _tracked(model)) == {}


def test_the_head_and_the_given_network_stay(tmp_path: Path) -> None:
    model = _network()
    _three_stages(model, tmp_path)
    with torch.no_grad():
        model.head.weight.fill_(7.0)
    before = fingerprint(model.state_dict())
    earlier = rollback(model, History(tmp_path), 1)
    assert torch.equal(earlier.get_parameter("head.weight"), torch.full((2, 4), 7.0))
    with torch.no_grad():
        for parameter in earlier.parameters():
            parameter.zero_()
    assert fingerprint(model.state_dict()) == before


@pytest.mark.parametrize("training", [True, False])
def test_memory_format_mode_and_gradients_flags_stay(tmp_path: Path, training: bool) -> None:
    model = _network()
    states = _three_stages(model, tmp_path)
    laid_out: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    laid_out.train(training)
    model.trunk.requires_grad_(False)
    earlier = rollback(laid_out, tmp_path, 2)
    weight = earlier.get_parameter("trunk.0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert earlier.training == training and earlier.get_submodule("trunk.1").training == training
    assert not weight.requires_grad and earlier.get_parameter("head.weight").requires_grad
    assert moved(states[2], _tracked(earlier)) == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_stays(tmp_path: Path) -> None:
    model = _network()
    states = _three_stages(model, tmp_path)
    earlier = rollback(model.cuda(), tmp_path, 1)
    assert all(tensor.is_cuda for tensor in earlier.state_dict().values())
    assert fingerprint(_tracked(earlier)) == fingerprint(states[1])


def test_tied_tensors_stay_tied(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    change = torch.randn(3, 3)
    History(tmp_path).record(state, {"0.weight": change, "1.weight": change}, {})
    moved_on = rollback(model, tmp_path, 1)
    assert moved_on.get_parameter("0.weight") is moved_on.get_parameter("1.weight")
    assert torch.equal(moved_on.get_parameter("0.weight"), state["0.weight"] + change)


def test_a_network_that_ties_what_the_history_holds_apart_is_refused(tmp_path: Path) -> None:
    apart = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    History(tmp_path).record(apart.state_dict(), {"0.weight": torch.ones(3, 3)}, {})
    tied = copy.deepcopy(apart)
    tied[1].weight = tied[0].weight
    with pytest.raises(InlayError, match=r"does not take on stage 1 .* bit for bit"):
        rollback(tied, tmp_path, 1)


def test_a_hybrid_is_refused(tmp_path: Path) -> None:
    model = _network()
    _three_stages(model, tmp_path)
    hybrid = attach(model, torch.randn(2, 3, 6, 6))
    with pytest.raises(InlayError, match=r"has branches; merge them"):
        rollback(hybrid, tmp_path, 1)


def test_another_network_is_refused(tmp_path: Path) -> None:
    model = _network()
    _three_stages(model, tmp_path)
    other = _network()
    other.trunk[0] = nn.Conv2d(3, 4, 5)
    with pytest.raises(InlayError, match=r"belongs to another network, .*'trunk.0.weight' of shape \[4, 3, 3, 3\]"):
        rollback(other, tmp_path, 1)
    with pytest.raises(InlayError, match=r"belongs to another network, one that has a tensor 'trunk.0.weight'"):
        rollback(model.head, tmp_path, 1)


def test_a_network_in_another_precision_is_refused(tmp_path: Path) -> None:
    model = _network()
    _three_stages(model, tmp_path)
    with pytest.raises(InlayError, match=r"is float16; convert the network with .to\(torch.float32\) first"):
        rollback(model.half(), tmp_path, 1)


def test_a_stage_out_of_range_or_a_folder_without_history_is_refused(tmp_path: Path) -> None:
    model = _network()
    _three_stages(model, tmp_path / "stages")
    for number in (-1, 4):
        with pytest.raises(InlayError, match=r"write a number from 0 to 3"):
            rollback(model, tmp_path / "stages", number)
    with pytest.raises(InlayError, match="holds no history"):
        rollback(model, tmp_path / "nothing", 1)
    with pytest.raises(InlayError, match="holds no history"):
        rollback(model, tmp_path, 1)
