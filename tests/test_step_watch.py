"""The watch of steps refuses what a GPU would, and lets pass what it does not mind."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from inlay.engine.batch import Batch
from inlay.engine.feed import ResidentFeed
from inlay.engine.loop import Loop
from inlay.engine.work import Work
from inlay.settings import TrainingSettings
from step_watch import NotRecordable, StepWatch, check_recordable, check_whole

_X = torch.linspace(-1, 1, 4)
_INDICES = torch.arange(4)

WAITING: dict[str, Callable[[], object]] = {
    "a number for the host": lambda: _X.sum().item(),
    "a truth value for the host": lambda: bool(_X.sum() > 0),
    "a list": lambda: _X.tolist(),
    "an array": lambda: _X.numpy(),
    "a copy on the CPU": lambda: _X.cpu(),
    "places that hold": lambda: _X.nonzero(),
    "truth values as an index": lambda: _X[_X > 0],
    "a list as an index": lambda: _X[[0, 1]],
    "different values": lambda: _X.unique(),  # type: ignore[no-untyped-call]
    "counts": lambda: _INDICES.bincount(),
    "repetitions": lambda: _X.repeat_interleave(_INDICES),
    "numbers from the host": lambda: torch.tensor([1.0, 2.0], device=_X.device),
    "numbers from the host, like others": lambda: _X.new_tensor([1.0]),
    "a tensor on no device in particular": lambda: torch.arange(3),
    "draws": lambda: torch.randn(3, device=_X.device),
    "dropout": lambda: functional.dropout(_X),
    "an eigenvalue": lambda: torch.linalg.eigh(_X[:, None] * _X),
    "a solution": lambda: torch.linalg.solve(torch.eye(4, device=_X.device), _X),
}
FREE: dict[str, Callable[[], object]] = {
    "a choice": lambda: torch.where(_X > 0, _X, 1.0),
    "a filled tensor": lambda: _X.new_full((2,), 3.0),
    "a range on a device": lambda: torch.arange(3, device=_X.device),
    "an index": lambda: _X[_INDICES],
    "an order": lambda: _X.sort(stable=True),
}


@pytest.mark.parametrize("kind", WAITING)
def test_what_waits_is_refused(kind: str) -> None:
    with pytest.raises(NotRecordable), StepWatch():
        WAITING[kind]()


@pytest.mark.parametrize("kind", FREE)
def test_what_does_not_wait_passes(kind: str) -> None:
    with StepWatch() as watch:
        FREE[kind]()
    assert watch.trace


class _Fit(Work):
    """A linear map whose output should be small."""

    def __init__(self, disturb: "Callable[[_Fit, int], None]") -> None:
        super().__init__()
        self.map = nn.Linear(4, 2)
        self.register_buffer("offset", torch.zeros(2))
        self.factor = 1.0
        self._disturb = disturb

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        outputs = self.map(batch.images.flatten(1).float()) + self.get_buffer("offset")
        return {"size": self.factor * outputs.square().mean()}

    def weights(self, progress: float) -> Mapping[str, float]:
        return {"size": 1.0}

    def begin_epoch(self, epoch: int) -> None:
        self._disturb(self, epoch)


def _loop(disturb: Callable[[_Fit, int], None]) -> Loop:
    images = torch.randint(256, (8, 1, 2, 2), generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    return Loop("a fit", _Fit(disturb), TrainingSettings(epochs=2, batch=4), ResidentFeed(images), 1)


def _new_number(work: _Fit, epoch: int) -> None:
    work.factor = 1.0 + epoch


def _new_buffer(work: _Fit, epoch: int) -> None:
    work.offset = torch.full((2,), float(epoch))


def _new_values(work: _Fit, epoch: int) -> None:
    work.get_buffer("offset").fill_(epoch)


@pytest.mark.parametrize("disturb", [_new_number, _new_buffer])
def test_a_step_that_a_recording_would_repeat_wrongly_is_refused(disturb: Callable[[_Fit, int], None]) -> None:
    with pytest.raises(NotRecordable, match="where one before did"):
        check_recordable(_loop(disturb))


def test_a_step_that_changes_what_is_in_a_buffer_passes_and_leaves_the_work_as_it_was() -> None:
    loop = _loop(_new_values)
    before = {name: tensor.clone() for name, tensor in loop.work.state_dict().items()}
    check_recordable(loop)
    check_whole(loop)
    torch.testing.assert_close(loop.work.state_dict(), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in loop.work.parameters())
