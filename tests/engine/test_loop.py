from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from inlay.engine.loop import Batch, Loop
from inlay.engine.schedule import cosine
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


class Point(nn.Module):
    """One weight, so that every step can be computed by hand."""

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(value, dtype=torch.float64))


def _loop(images: int, settings: TrainingSettings, seed: int = 0, point: Point | None = None) -> Loop:
    return Loop("a test", {"point": point or Point()}, settings, images, seed)


def _batches(loop: Loop) -> list[Batch]:
    batches = []
    with loop:
        for batch in loop:
            batches.append(batch)
            loop.update({"loss": next(loop.modules["point"].parameters()).square()})
    return batches


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


def test_images_are_spread_evenly_over_the_batches_of_an_epoch() -> None:
    for epoch in _epochs(_loop(14, TrainingSettings(epochs=5, batch=4))):
        assert sorted(len(indices) for indices in epoch) == [3, 3, 4, 4]
        assert sorted(torch.cat(epoch).tolist()) == list(range(14))


def test_batch_larger_than_the_set_is_the_set() -> None:
    epochs = _epochs(_loop(5, TrainingSettings(epochs=2, batch=8)))
    assert [[sorted(indices.tolist()) for indices in epoch] for epoch in epochs] == [[[0, 1, 2, 3, 4]]] * 2


def test_steps_and_progress_are_counted() -> None:
    batches = _batches(_loop(8, TrainingSettings(epochs=2, batch=4)))
    assert [batch.step for batch in batches] == [0, 1, 2, 3]
    assert [batch.progress for batch in batches] == [0.0, 0.25, 0.5, 0.75]


def test_randomness_is_a_function_of_seed_and_step() -> None:
    def draws(seed: int) -> list[tuple[list[int], float]]:
        batches = _batches(_loop(8, TrainingSettings(epochs=2, batch=4), seed))
        return [(batch.indices.tolist(), torch.rand(1, generator=batch.generator).item()) for batch in batches]

    first = draws(1)
    assert draws(1) == first
    assert draws(2) != first
    assert len({number for _, number in first}) == len(first)


def test_global_randomness_is_left_alone() -> None:
    state = torch.get_rng_state()
    _batches(_loop(8, TrainingSettings(epochs=2, batch=4)))
    assert torch.equal(torch.get_rng_state(), state)


def _rates(settings: TrainingSettings) -> list[float]:
    loop, rates = _loop(8, settings), []
    with loop:
        for _ in loop:
            loop.update({"loss": next(loop.modules["point"].parameters()).square()})
            rates.append(loop.optimizer.param_groups[0]["lr"])
    return rates


def test_cosine_schedule_is_applied() -> None:
    rates = _rates(TrainingSettings(epochs=5, batch=4, learning_rate=0.3))
    assert rates == pytest.approx([0.3 * cosine(step / 10) for step in range(10)])


def test_step_schedule_is_applied() -> None:
    settings = TrainingSettings(epochs=5, batch=4, learning_rate=0.3, schedule="step", decay_at=(0.5, 0.8))
    assert _rates(settings) == pytest.approx([0.3] * 5 + [0.03] * 3 + [0.003] * 2)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, True), (0.9, False), (0.9, True)])
def test_steps_against_sgd_by_hand(momentum: float, nesterov: bool) -> None:
    """Two losses, w² and 3w, with weight decay: the gradient of their sum is 2w + 3 + 0.01 w."""
    settings = TrainingSettings(3, 4, 0.1, momentum, nesterov, 0.01, "step")
    point = Point(2.0)
    loop = _loop(4, settings, point=point)
    weight, velocity = 2.0, 0.0
    with loop:
        for _ in loop:
            loop.update({"square": point.weight.square(), "linear": 3 * point.weight})
            gradient = 2 * weight + 3 + 0.01 * weight
            velocity = momentum * velocity + gradient
            weight -= 0.1 * (gradient + momentum * velocity if nesterov else velocity)
            assert point.weight.item() == pytest.approx(weight, rel=1e-12)


def test_frozen_parameters_are_not_trained() -> None:
    frozen, trained = Point().requires_grad_(False), Point()
    settings = TrainingSettings(epochs=2, batch=4, weight_decay=0.5)
    loop = Loop("a test", {"frozen": frozen, "trained": trained}, settings, 8, seed=0)
    with loop:
        for _ in loop:
            loop.update({"loss": (frozen.weight * trained.weight).square()})
    assert frozen.weight.item() == 1.0
    assert trained.weight.item() != 1.0


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter has a gradient"):
        _loop(8, TrainingSettings(), point=Point().requires_grad_(False))


def test_modules_are_put_into_training_mode() -> None:
    loop = _loop(8, TrainingSettings(epochs=1, batch=4), point=Point().eval())
    with loop:
        assert loop.modules["point"].training


def test_forgotten_update_is_refused() -> None:
    loop = _loop(8, TrainingSettings(epochs=1, batch=4))
    with loop, pytest.raises(RuntimeError, match="update must be called once for each batch"):
        for _ in loop:
            pass


def test_second_update_is_refused() -> None:
    loop = _loop(8, TrainingSettings(epochs=1, batch=4))
    with loop, pytest.raises(RuntimeError, match="update must be called once for each batch"):
        for _ in loop:
            for _ in range(2):
                loop.update({"loss": next(loop.modules["point"].parameters()).square()})


def test_progress_is_told() -> None:
    progress = RecordingProgress()
    point = Point(2.0)
    settings = TrainingSettings(epochs=1, batch=4, learning_rate=0.0)
    with Loop("a test", {"point": point}, settings, 4, seed=0, progress=progress) as loop:
        for _ in loop:
            loop.update({"square": point.weight.square(), "linear": 3 * point.weight})
    losses = {"total": 10.0, "square": 4.0, "linear": 6.0}
    assert progress.news == [("start", "a test", 1, 0), ("step", 1, losses), ("finish",)]


def test_progress_is_ended_after_an_error() -> None:
    progress = RecordingProgress()
    loop = Loop("a test", {"point": Point()}, TrainingSettings(), 4, seed=0, progress=progress)
    with pytest.raises(ZeroDivisionError), loop:
        raise ZeroDivisionError
    assert progress.news[-1] == ("finish",)
