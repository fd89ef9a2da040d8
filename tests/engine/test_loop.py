import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from inlay.engine.batch import Batch
from inlay.engine.feed import Feed, HostPixels, ResidentFeed, StreamedFeed
from inlay.engine.loop import Companions, Keeping, Loop
from inlay.engine.order import Order
from inlay.engine.schedule import cosine
from inlay.engine.work import Work
from inlay.engine.world import World
from inlay.errors import InlayError
from inlay.settings import TrainingSettings


@dataclass
class RecordingProgress:
    news: list[tuple[object, ...]] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.news.append(("note", text))

    def start(self, name: str, total: int, done: int) -> None:
        self.news.append(("start", name, total, done))

    def step(self, done: int, losses: Mapping[str, float]) -> None:
        self.news.append(("step", done, dict(losses)))

    def finish(self) -> None:
        self.news.append(("finish",))


class Number(nn.Module):
    """One weight, so that every step can be computed by hand."""

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(value, dtype=torch.float64))


class Point(Work):
    """One weight w under the losses w² and w."""

    def __init__(self, value: float = 1.0, linear: Callable[[float], float] = lambda progress: 0.0) -> None:
        super().__init__()
        self.number = Number(value)
        self._linear = linear
        self.batches: list[Batch] = []
        self.modes: list[bool] = []

    @property
    def weight(self) -> nn.Parameter:
        return self.number.weight

    def weights(self, progress: float) -> dict[str, float]:
        return {"square": 1.0, "linear": self._linear(progress)}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        self.batches.append(batch.copied())
        self.modes.append(self.number.training)
        return {"linear": self.weight * 1, "square": self.weight.square()}


def _images(count: int) -> Tensor:
    """Images that tell their own position."""
    return torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(count, 1, 2, 2).clone()


def _loop(
    images: int,
    settings: TrainingSettings,
    seed: int = 0,
    point: Point | None = None,
    companions: Companions | None = None,
    feed: Feed | None = None,
) -> Loop:
    return Loop("a test", point or Point(), settings, feed or ResidentFeed(_images(images)), seed, companions)


def _batches(loop: Loop) -> list[Batch]:
    assert isinstance(loop.work, Point)
    loop.run()
    return loop.work.batches


def _epochs(loop: Loop) -> list[list[Tensor]]:
    indices = [batch.indices for batch in _batches(loop)]
    count = len(indices) // loop.settings.epochs
    return [indices[first : first + count] for first in range(0, len(indices), count)]


def test_divisible_epoch_visits_every_image_once() -> None:
    epochs = _epochs(_loop(12, TrainingSettings(epochs=3, batch=4)))
    assert len(epochs) == 3
    for epoch in epochs:
        assert [len(indices) for indices in epoch] == [4, 4, 4]
        assert sorted(torch.cat(epoch).tolist()) == list(range(12))
    orders = [torch.cat(epoch).tolist() for epoch in epochs]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_batches_come_in_the_order_of_the_seed() -> None:
    for images, batch in ((14, 4), (9, 8), (100, 40)):
        order = Order(images, batch, seed=3)
        for number, epoch in enumerate(_epochs(_loop(images, TrainingSettings(epochs=3, batch=batch), seed=3))):
            assert torch.equal(torch.stack(epoch), order.epoch(number))


def test_batch_larger_than_the_set_is_the_set() -> None:
    epochs = _epochs(_loop(5, TrainingSettings(epochs=2, batch=8)))
    assert [[sorted(indices.tolist()) for indices in epoch] for epoch in epochs] == [[[0, 1, 2, 3, 4]]] * 2


@pytest.mark.parametrize("streamed", [True, False])
def test_batches_hold_the_images_they_name(streamed: bool) -> None:
    images = _images(14)
    feed = StreamedFeed(HostPixels(images), torch.device("cpu")) if streamed else ResidentFeed(images)
    for batch in _batches(_loop(14, TrainingSettings(epochs=2, batch=4), feed=feed)):
        assert torch.equal(batch.images, images[batch.indices])
        assert batch.partners is batch.images and torch.equal(batch.rows, batch.indices)


def test_companions_choose_the_images_of_the_second_view() -> None:
    asked: list[int] = []

    def companions(indices: Tensor, key: int) -> Tensor:
        asked.append(key)
        return (indices + 1 + key % 3) % 14

    images = _images(14)
    batches = _batches(_loop(14, TrainingSettings(epochs=2, batch=4), companions=companions))
    assert len(asked) == len(batches) == len(set(asked))
    for key, batch in zip(asked, batches, strict=True):
        assert torch.equal(batch.images, images[batch.indices])
        assert torch.equal(batch.partners, images[(batch.indices + 1 + key % 3) % 14])


def test_companions_change_neither_the_order_nor_the_keys() -> None:
    settings = TrainingSettings(epochs=2, batch=4)
    alone, paired = (_batches(_loop(14, settings, companions=c)) for c in (None, lambda indices, key: indices))
    for one, other in zip(alone, paired, strict=True):
        assert torch.equal(one.indices, other.indices) and torch.equal(one.key, other.key)


def _as_process(rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "current", staticmethod(lambda: World(rank, size, rank, parallel=True)))


@pytest.mark.parametrize("paired", [True, False])
def test_processes_share_the_batches_of_one(paired: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def companions(indices: Tensor, key: int) -> Tensor:
        return (indices + 1 + key % 3) % 40

    settings, given = TrainingSettings(epochs=2, batch=16), companions if paired else None
    whole = list(_loop(40, settings, companions=given)._batches())
    shares = []
    for rank in range(4):
        _as_process(rank, 4, monkeypatch)
        shares.append(list(_loop(40, settings, companions=given)._batches()))
    assert [len(share) for share in shares] == [len(whole)] * 4
    for step, batch in enumerate(whole):
        parts = [share[step] for share in shares]
        for name in ("images", "partners", "rows"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))
        for part in parts:
            assert torch.equal(part.indices, batch.indices) and torch.equal(part.key, batch.key)


def test_a_batch_that_processes_cannot_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _as_process(1, 2, monkeypatch)
    sentence = r"5 images in batches of 5 cannot be shared evenly by 2 processes; write --set training\.batch=4 or use"
    with pytest.raises(InlayError, match=sentence):
        _loop(5, TrainingSettings(batch=8))


def test_the_advice_for_a_batch_that_cannot_be_shared_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    _as_process(1, 3, monkeypatch)
    refused = 0
    for images in range(3, 60, 7):
        for batch in range(2, 40, 5):
            try:
                _loop(images, TrainingSettings(batch=batch))
            except InlayError as error:
                refused += 1
                if advised := re.search(r"batch=(\d+)", str(error)):
                    _loop(images, TrainingSettings(batch=int(advised[1])))
    assert refused > 5


def test_no_batch_to_advise_leaves_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    _as_process(1, 7, monkeypatch)
    with pytest.raises(InlayError, match="shared evenly by 7 processes; use another number of processes"):
        _loop(5, TrainingSettings(batch=8))


def test_the_work_is_told_its_progress() -> None:
    told: list[float] = []

    def linear(progress: float) -> float:
        told.append(progress)
        return progress

    _loop(8, TrainingSettings(epochs=2, batch=4), point=Point(linear=linear)).run()
    assert told == [0.0, 0.0, 0.25, 0.5, 0.75]  # once for the names of the losses, and in every step


class Beginning(Point):
    """Notes what happens."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self._notes = notes

    def begin_epoch(self, epoch: int) -> None:
        self._notes.append(f"epoch {epoch}")

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        self._notes.append("step")
        return super().forward(batch)


@pytest.mark.parametrize("stops", [[], [3], [2], [1, 4], [1, 2, 3, 4, 5], [6], [3, 3]], ids=str)
def test_an_epoch_begins_once_before_its_first_step_also_after_stops(stops: list[int], tmp_path: Path) -> None:
    notes: list[str] = []
    settings, keeping = TrainingSettings(epochs=3, batch=4), Keeping(tmp_path / "kept.safetensors", seconds=0)
    for last in [*stops, None]:
        Loop("a test", Beginning(notes), settings, ResidentFeed(_images(8)), 0, keeping=keeping, last_step=last).run()
    assert notes == ["epoch 0", "step", "step", "epoch 1", "step", "step", "epoch 2", "step", "step"]


def test_randomness_is_a_function_of_seed_and_step() -> None:
    def draws(seed: int) -> list[tuple[list[int], int]]:
        batches = _batches(_loop(8, TrainingSettings(epochs=2, batch=4), seed))
        assert all(batch.key.dtype == torch.int64 and batch.key.ndim == 0 for batch in batches)
        return [(batch.indices.tolist(), int(batch.key)) for batch in batches]

    first = draws(1)
    assert draws(1) == first
    assert not {key for _, key in draws(2)} & {key for _, key in first}
    assert len({key for _, key in first}) == len(first)


def test_global_randomness_is_left_alone() -> None:
    state = torch.get_rng_state()
    _loop(8, TrainingSettings(epochs=2, batch=4)).run()
    assert torch.equal(torch.get_rng_state(), state)


class WatchedLoop(Loop):
    """Remembers the learning rate and the weight after each step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rates: list[float] = []
        self.passed: list[float] = []

    def take_step(self, batch: Batch) -> None:
        super().take_step(batch)
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        assert isinstance(self.work, Point)
        self.passed.append(self.work.weight.item())


def _watched(images: int, settings: TrainingSettings, point: Point | None = None) -> WatchedLoop:
    loop = WatchedLoop("a test", point or Point(), settings, ResidentFeed(_images(images)), 0)
    loop.run()
    return loop


def test_cosine_schedule_is_applied() -> None:
    rates = _watched(8, TrainingSettings(epochs=5, batch=4, learning_rate=0.3)).rates
    assert rates == pytest.approx([0.3 * cosine(step / 10) for step in range(10)])


def test_step_schedule_is_applied() -> None:
    settings = TrainingSettings(epochs=5, batch=4, learning_rate=0.3, schedule="step", decay_at=(0.5, 0.8))
    assert _watched(8, settings).rates == pytest.approx([0.3] * 5 + [0.03] * 3 + [0.003] * 2)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, True), (0.9, False), (0.9, True)])
def test_steps_against_sgd_by_hand(momentum: float, nesterov: bool) -> None:
    """Losses w² and 3(1 - p)w at progress p, with weight decay: their gradient is 2w + 3(1 - p) + 0.01 w."""
    plain = TrainingSettings(epochs=3, batch=4, learning_rate=0.1, weight_decay=0.01, schedule="step")
    settings = replace(plain, momentum=momentum, nesterov=nesterov)
    loop = _watched(4, settings, Point(2.0, linear=lambda progress: 3 * (1 - progress)))
    weight, velocity = 2.0, 0.0
    assert len(loop.passed) == 3
    for step, passed in enumerate(loop.passed):
        gradient = 2 * weight + 3 * (1 - step / 3) + 0.01 * weight
        velocity = momentum * velocity + gradient
        weight -= 0.1 * (gradient + momentum * velocity if nesterov else velocity)
        assert passed == pytest.approx(weight, rel=1e-12)


class Pair(Work):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.trained = Number().requires_grad_(False), Number()

    def weights(self, progress: float) -> dict[str, float]:
        return {"loss": 1.0}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": (self.frozen.weight * self.trained.weight).square()}


class Dropped(Work):
    """A linear map behind dropout, which draws from torch's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1))
        for parameter in self.map.parameters():
            nn.init.ones_(parameter)

    def weights(self, progress: float) -> dict[str, float]:
        return {"loss": 1.0}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.map(batch.images.flatten(1).float() / 255).square().mean()}


def test_what_a_network_draws_belongs_to_the_step(tmp_path: Path) -> None:
    ended = []
    lives: list[list[int | None]] = [[None], [2, None]]
    for number, stops in enumerate(lives):
        keeping = Keeping(tmp_path / f"{number}.safetensors", seconds=0)
        for last_step in stops:
            work = Dropped()
            torch.manual_seed(number)
            before = torch.get_rng_state()
            settings, feed = TrainingSettings(epochs=3, batch=4), ResidentFeed(_images(8))
            Loop("a test", work, settings, feed, 0, keeping=keeping, last_step=last_step).run()
            assert torch.equal(torch.get_rng_state(), before)
        ended.append(work.map[1].get_parameter("weight").detach())
    assert torch.equal(ended[0], ended[1])
    assert not torch.equal(ended[0], torch.ones_like(ended[0]))


def test_frozen_parameters_are_not_trained() -> None:
    pair = Pair()
    settings = TrainingSettings(epochs=2, batch=4, weight_decay=0.5)
    Loop("a test", pair, settings, ResidentFeed(_images(8)), seed=0).run()
    assert pair.frozen.weight.item() == 1.0
    assert pair.trained.weight.item() != 1.0


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter has a gradient"):
        _loop(8, TrainingSettings(), point=Point().requires_grad_(False))


def test_modules_are_put_into_training_mode() -> None:
    point = Point().eval()
    _loop(8, TrainingSettings(epochs=1, batch=4), point=point).run()
    assert point.modes == [True, True]


def test_a_rehearsal_takes_the_first_steps_alone() -> None:
    settings = TrainingSettings(epochs=3, batch=4)
    whole = _watched(12, settings)
    part = WatchedLoop("a test", Point(), settings, ResidentFeed(_images(12)), 0, last_step=5)
    part.run()
    assert part.step == 5 and part.passed == whole.passed[:5]
    assert len(whole.passed) == 9


def test_time_and_images_are_counted() -> None:
    loop = _loop(14, TrainingSettings(epochs=2, batch=4))
    loop.run()
    assert loop.timing.images == (loop.total - 1) * 4  # the first step makes the step ready
    for seconds in (loop.timing.warm_up_seconds, loop.timing.train_seconds, loop.timing.waiting_seconds):
        assert seconds > 0


def test_progress_is_told() -> None:
    progress = RecordingProgress()
    settings = TrainingSettings(epochs=1, batch=4, learning_rate=0.0)
    point = Point(2.0, linear=lambda progress: 3.0)
    Loop("a test", point, settings, ResidentFeed(_images(4)), seed=0, progress=progress).run()
    losses = {"total": 10.0, "square": 4.0, "linear": 6.0}
    assert progress.news == [("start", "a test", 1, 0), ("step", 1, losses), ("finish",)]


class Failing(Point):
    def forward(self, batch: Batch) -> dict[str, Tensor]:
        raise ZeroDivisionError


def test_progress_is_ended_after_an_error() -> None:
    progress = RecordingProgress()
    loop = Loop("a test", Failing(), TrainingSettings(), ResidentFeed(_images(4)), seed=0, progress=progress)
    with pytest.raises(ZeroDivisionError):
        loop.run()
    assert progress.news[-1] == ("finish",)
