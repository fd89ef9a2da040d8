import itertools
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from inlay.data.draws import Draws
from inlay.engine import interrupt
from inlay.engine.batch import Batch
from inlay.engine.checkpoint import read_tensors, training_state, write_tensors
from inlay.engine.feed import ResidentFeed
from inlay.engine.loop import Keeping, Loop
from inlay.engine.work import Work
from inlay.errors import InlayError, Interrupted, TrainingDivergedError
from inlay.settings import TrainingSettings

SETTINGS = TrainingSettings(epochs=3, batch=4)
IMAGES = 16
TOTAL = 3 * 4
NEVER = 3600.0

Disturbance = Callable[[int, Loop], Tensor | None]


class Stop(Exception):
    """Stands for the end of the process, at a moment when the loop is told nothing."""


class Noisy(Work):
    """A small network on images with noise of each step; `disturb` may act in a step, or give another loss for it."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(4)
            network = nn.Sequential(
                nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2)
            )
            self.head = nn.Linear(4, 2)
        self.network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.disturb: Callable[[], Tensor | None] = lambda: None

    def weights(self, progress: float) -> dict[str, float]:
        return {"loss": 1.0, "more": 0.1 + progress}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        noise = Draws(batch.key, batch.rows).normal(3, 5, 5)
        views = batch.images / 128 + batch.partners / 256 - 1 + noise
        features = self.network(views.to(memory_format=torch.channels_last)).mean(dim=(2, 3))
        other = self.disturb()
        loss = self.head(features).square().mean() if other is None else other
        return {"loss": loss, "more": features.abs().mean()}


def _companions(indices: Tensor, key: int) -> Tensor:
    return Draws(key, indices).choice(IMAGES)


def _loop(keeping: Keeping) -> Loop:
    images = torch.randint(256, (IMAGES, 3, 5, 5), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    return Loop("stage 1", Noisy(), SETTINGS, ResidentFeed(images), 7, _companions, keeping)


def _train(loop: Loop, disturb: Disturbance = lambda step, loop: None) -> None:
    """Train; `disturb` may act in a step, or give another loss for it."""
    assert isinstance(loop.work, Noisy)
    loop.work.disturb = lambda: disturb(loop.step, loop)
    loop.run()


def _stop_at(moment: int) -> Disturbance:
    def disturb(step: int, loop: Loop) -> None:
        if step == moment:
            raise Stop

    return disturb


def _press_ctrl_c_at(moment: int, times: int = 1, number: signal.Signals = signal.SIGINT) -> Disturbance:
    def disturb(step: int, loop: Loop) -> None:
        if step == moment:
            for _ in range(times):
                os.kill(os.getpid(), number)

    return disturb


def _state(loop: Loop) -> dict[str, Tensor]:
    tensors, _ = training_state(dict(loop.work.named_children()), loop.optimizer)
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _different(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> list[str]:
    assert found.keys() == wanted.keys()
    return [name for name in wanted if not torch.equal(found[name], wanted[name])]


@pytest.fixture(scope="module")
def straight() -> dict[str, Tensor]:
    """Weights, buffers and optimiser state of a training that was never stopped."""
    loop = _loop(Keeping())
    _train(loop)
    state = _state(loop)
    assert any(name.startswith("optimizer.") for name in state)
    return state


@pytest.mark.parametrize("stops", [[1], [6], [4], [2, 3, 9], [11]])
def test_resumed_training_ends_the_same(stops: list[int], straight: dict[str, Tensor], tmp_path: Path) -> None:
    """Epochs have 4 steps, so these stops lie inside epochs and between them."""
    keeping = Keeping(tmp_path / "state", seconds=0)
    for moment in stops:
        with pytest.raises(Stop):
            _train(_loop(keeping), _stop_at(moment))
        assert read_tensors(tmp_path / "state")[1]["step"] == moment
    loop = _loop(keeping)
    _train(loop)
    assert loop.step == TOTAL
    assert _different(_state(loop), straight) == []


def test_layout_in_memory_survives_a_stop(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path / "state", seconds=0)
    with pytest.raises(Stop):
        _train(_loop(keeping), _stop_at(3))
    loop = _loop(keeping)
    _train(loop)
    kernel = loop.work.get_parameter("network.0.weight")
    for tensor in (kernel, loop.optimizer.state[kernel]["momentum_buffer"]):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
        assert not tensor.is_contiguous()


def test_work_since_the_last_checkpoint_is_done_again(straight: dict[str, Tensor], tmp_path: Path) -> None:
    with pytest.raises(Stop):
        _train(_loop(Keeping(tmp_path / "state", seconds=0)), _stop_at(2))
    with pytest.raises(Stop):
        _train(_loop(Keeping(tmp_path / "state", seconds=NEVER)), _stop_at(9))
    assert read_tensors(tmp_path / "state")[1]["step"] == 2
    loop = _loop(Keeping(tmp_path / "state", seconds=NEVER))
    _train(loop)
    assert _different(_state(loop), straight) == []


def test_finished_training_is_kept_and_not_repeated(straight: dict[str, Tensor], tmp_path: Path) -> None:
    keeping = Keeping(tmp_path / "state", seconds=NEVER)
    _train(_loop(keeping))
    loop = _loop(keeping)
    _train(loop, _stop_at(0))
    assert loop.step == TOTAL
    assert _different(_state(loop), straight) == []


def test_keeping_does_not_change_the_training(straight: dict[str, Tensor], tmp_path: Path) -> None:
    loop = _loop(Keeping(tmp_path / "state", seconds=0))
    _train(loop)
    assert _different(_state(loop), straight) == []


def test_checkpoint_of_other_work_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run" / "progress" / "state"
    path.parent.mkdir(parents=True)
    with pytest.raises(Stop):
        _train(_loop(Keeping(path, 0, "mine")), _stop_at(3))
    before = path.read_bytes()
    loop = _loop(Keeping(path, 0, "other"))
    sentence = (
        f"{tmp_path / 'run'} holds unfinished work with other images or settings, or from before a review of "
        f"classes; repeat that command to go on with it, or pass --restart to drop it."
    )
    with pytest.raises(InlayError, match=f"^{re.escape(sentence)}$"):
        _train(loop)
    assert path.read_bytes() == before
    assert _different(_state(loop), _state(_loop(Keeping()))) == []


@pytest.mark.parametrize("missing", ["training", "step", "seconds"])
def test_checkpoint_that_lacks_a_fact_is_refused(missing: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    with pytest.raises(Stop):
        _train(_loop(Keeping(path, 0)), _stop_at(3))
    tensors, facts = read_tensors(path)
    write_tensors(path, tensors, {key: value for key, value in facts.items() if key != missing})
    loop = _loop(Keeping(path, 0))
    sentence = f"{path} is damaged; pass --restart to begin the stage anew."
    with pytest.raises(InlayError, match=f"^{re.escape(sentence)}$"):
        _train(loop)
    assert _different(_state(loop), _state(_loop(Keeping()))) == []


def test_a_rehearsal_leaves_no_checkpoint(tmp_path: Path) -> None:
    loop = _loop(Keeping(tmp_path / "state", seconds=NEVER))
    loop.last_step = 3
    _train(loop)
    assert loop.step == 3 and not (tmp_path / "state").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_at_the_end_of_the_step_with_the_state_kept(
    number: signal.Signals, straight: dict[str, Tensor], tmp_path: Path
) -> None:
    before = signal.getsignal(number)
    keeping = Keeping(tmp_path / "state", seconds=NEVER)
    loop = _loop(keeping)
    with pytest.raises(
        Interrupted, match=r"^Stopped stage 1 at step 6 of 12; repeat the command to go on from there\.$"
    ):
        _train(loop, _press_ctrl_c_at(5, number=number))
    assert signal.getsignal(number) is before
    tensors, facts = read_tensors(tmp_path / "state")
    assert facts["step"] == 6
    assert _different(tensors, _state(loop)) == []
    resumed = _loop(keeping)
    _train(resumed)
    assert _different(_state(resumed), straight) == []


def test_ctrl_c_without_a_checkpoint_says_so() -> None:
    with pytest.raises(Interrupted, match=r"^Stopped stage 1 at step 6 of 12; nothing was kept: pass run=FOLDER"):
        _train(_loop(Keeping()), _press_ctrl_c_at(5))


def test_second_ctrl_c_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=2.0)
    monkeypatch.setattr(interrupt, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    before = signal.getsignal(signal.SIGINT)
    loop = _loop(Keeping(tmp_path / "state", seconds=NEVER))
    with pytest.raises(KeyboardInterrupt):
        _train(loop, _press_ctrl_c_at(5, times=2))
    assert loop.step == 5
    assert signal.getsignal(signal.SIGINT) is before
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_loss_that_is_not_finite_keeps_the_last_good_state(
    value: float, straight: dict[str, Tensor], tmp_path: Path
) -> None:
    keeping = Keeping(tmp_path / "state", seconds=0)
    loop = _loop(keeping)
    sentence = (
        r"^stage 1 stopped at step 8 of 12 because the loss '\w+' is not finite; the last good state is kept; try a "
        r"lower learning rate, such as --set \S+learning_rate=0\.01 --restart\.$"
    )
    with pytest.raises(TrainingDivergedError, match=sentence):
        _train(loop, lambda step, _: torch.tensor(value, requires_grad=True) if step == 7 else None)
    tensors, facts = read_tensors(tmp_path / "state")
    assert facts["step"] == 7
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    resumed = _loop(keeping)
    _train(resumed)
    assert _different(_state(resumed), straight) == []


def test_loss_that_is_not_finite_without_a_checkpoint() -> None:
    with pytest.raises(TrainingDivergedError, match="is not finite; the state before this stage is unchanged; try"):
        _train(_loop(Keeping()), lambda step, _: torch.tensor(float("nan"), requires_grad=True))


def test_weight_that_is_not_finite_is_never_kept(tmp_path: Path) -> None:
    """The loss of one step is 0 with a gradient so large that the step overflows."""
    loop = _loop(Keeping(tmp_path / "state", seconds=0))

    def leap(step: int, loop: Loop) -> Tensor | None:
        weight = loop.work.get_parameter("head.weight")
        return 3e38 * (weight - weight.detach()).sum() if step == 5 else None

    with pytest.raises(
        TrainingDivergedError, match=r"^stage 1 stopped at step 6 of 12 because 'module\.head\.weight' is not finite"
    ):
        _train(loop, leap)
    tensors, facts = read_tensors(tmp_path / "state")
    assert facts["step"] == 5
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
