"""Recorded and compiled steps on a GPU: the same as eager ones, and free of waiting for the device."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inlay.engine.batch import Batch
from inlay.engine.feed import Feed
from inlay.engine.loop import Companions, Keeping, Loop
from inlay.engine.step import Pace
from inlay.engine.work import Work
from inlay.methods.model import neighbours_as_companions
from inlay.methods.supervised import BaseWork
from inlay.settings import TrainingSettings
from tiny_stage import SEED, base_task, batch_of, discovery_work, on_device, quick, tiny_task

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STEPS = 10
EPOCHS = 20
# At larger rates ten steps of an untrained network magnify rounding a thousandfold.
_CALM_RATE = 0.002
# Compiled sums are taken in another order; a step too many or without momentum differs by tens of percents.
_ROUNDING: dict[Pace, float] = {"graph": 0.01, "compile": 0.05}
DEVICE = torch.device("cuda")
PARTNERS = {"assignment.partner_share": 0.3, "assignment.information": 1.0}


@pytest.fixture(autouse=True)
def exact_convolutions() -> Iterator[None]:
    """With TF32 the paces would differ by its rounding."""
    torch._dynamo.reset()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


class WatchedLoop(Loop):
    """Remembers the losses of each step and, at the end, whether the step was recorded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.losses: list[list[float]] = []
        self.recorded = False

    def take_step(self, batch: Batch) -> None:
        super().take_step(batch)
        self.losses.append(self._stepper.values.tolist())
        self.recorded = self._stepper._graph is not None


@dataclass(frozen=True)
class Case:
    work: Work
    feed: Feed
    batch: Batch
    settings: TrainingSettings
    companions: Companions | None = None


def _base() -> Case:
    settings = quick(changes={"base.contrastive": 0.5, "base.training.precision": "float32"}).base
    task = base_task(settings, DEVICE)
    return Case(BaseWork(task), task.feed, batch_of(task), settings.training)


def _stage(name: str, changes: dict[str, float]) -> Case:
    task = on_device(
        tiny_task(quick(name, {"training.precision": "float32", "training.epochs": EPOCHS, **changes})), DEVICE
    )
    companions = neighbours_as_companions(task)
    return Case(discovery_work(task), task.feed, batch_of(task), task.settings.training, companions)


CASES: dict[str, Callable[[], Case]] = {
    "base": _base,
    "inlay": lambda: _stage("inlay", {}),
    "paper": lambda: _stage("paper", {}),
    "inlay with partners": lambda: _stage("inlay", PARTNERS),
    "frost": lambda: _stage("frost", {}),
    "ncl": lambda: _stage("ncl", {"neighbourhood.queue": 60}),
    "dtc": lambda: _stage("dtc", {}),
    "restune": lambda: _stage("restune", {}),
}


def _weights(work: Work) -> Tensor:
    return torch.cat([parameter.detach().double().flatten() for parameter in work.parameters()])


def _trained(name: str, pace: Pace, last_step: int = STEPS, keeping: Keeping | None = None) -> WatchedLoop:
    case = CASES[name]()
    settings = replace(case.settings, pace=pace, epochs=EPOCHS, learning_rate=_CALM_RATE)
    keeping = keeping or Keeping()
    loop = WatchedLoop(
        name, case.work, settings, case.feed, SEED, case.companions, keeping=keeping, last_step=last_step
    )
    loop.run()
    assert loop.step == last_step
    return loop


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("pace", ["graph", "compile"])
def test_every_pace_takes_the_steps_of_the_eager_one(name: str, pace: Pace) -> None:
    eager, other = _trained(name, "eager"), _trained(name, pace)
    assert len(eager.losses) == len(other.losses) == STEPS
    assert other.recorded and not eager.recorded
    torch.testing.assert_close(torch.tensor(other.losses), torch.tensor(eager.losses), rtol=1e-3, atol=1e-4)
    start = _weights(CASES[name]().work)
    moved = _weights(eager.work) - start
    assert (_weights(other.work) - start - moved).norm() < _ROUNDING[pace] * moved.norm()


@pytest.mark.parametrize("pace", ["graph", "compile"])
def test_recorded_steps_go_on_from_a_checkpoint(pace: Pace, tmp_path: Path) -> None:
    """Momentum and learning rate of the first steps after a stop are those of a loop that was not stopped."""
    whole = _trained("paper", pace)
    keeping = Keeping(tmp_path / "checkpoint.safetensors", seconds=0)
    _trained("paper", pace, last_step=6, keeping=keeping)
    rest = _trained("paper", pace, keeping=keeping)
    assert rest.recorded and len(rest.losses) == STEPS - 6
    torch.testing.assert_close(torch.tensor(rest.losses), torch.tensor(whole.losses[6:]), rtol=1e-3, atol=1e-4)
    start = _weights(CASES["paper"]().work)
    moved = _weights(whole.work) - start
    assert (_weights(rest.work) - start - moved).norm() < 0.01 * moved.norm()


def test_a_recording_gives_its_memory_back() -> None:
    def left_over() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    _trained("inlay", "graph")
    after_one = left_over()
    for _ in range(3):
        _trained("inlay", "graph")
    assert left_over() <= after_one


@pytest.mark.parametrize("pace", ["eager", "graph"])
def test_each_step_has_its_own_batch_and_learning_rate(pace: Pace) -> None:
    """A recorded step that kept the batch or the rate of the recording would repeat its losses."""
    loop = _trained("paper", pace)
    assert len({tuple(losses) for losses in loop.losses}) == STEPS


@pytest.mark.parametrize("name", CASES)
def test_no_loss_waits_for_the_device(name: str) -> None:
    case = CASES[name]()

    def losses_and_gradients() -> None:
        torch.autograd.backward([torch.stack(list(case.work(case.batch).values())).sum()])

    losses_and_gradients()
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses_and_gradients()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in case.work.parameters())


def test_a_check_for_waiting_notices_waiting() -> None:
    number = torch.ones((), device=DEVICE)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchronizing"):
            number.item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
