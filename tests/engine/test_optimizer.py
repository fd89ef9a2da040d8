import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from inlay.engine.batch import Batch
from inlay.engine.feed import ResidentFeed
from inlay.engine.loop import Keeping, Loop
from inlay.engine.work import Work
from inlay.settings import TrainingSettings

STEPS = 4


class Square(Work):
    """One weight w under the loss w²."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.constant_(self.number.weight, 2.0)

    def weights(self, progress: float) -> dict[str, float]:
        return {"square": 1.0}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return {"square": self.number.weight.square().sum()}


def _loop(settings: TrainingSettings, keeping: Keeping | None = None) -> Loop:
    images = ResidentFeed(torch.zeros(4, 1, 2, 2, dtype=torch.uint8))
    return Loop("a square", Square(), settings, images, seed=0, keeping=keeping or Keeping())


def _trained(settings: TrainingSettings, last: int | None = None) -> float:
    loop = _loop(settings)
    loop.last_step = last
    loop.run()
    assert isinstance(loop.work, Square)
    return loop.work.number.weight.item()


@pytest.mark.parametrize("kind", ["adam", "adamw"])
@pytest.mark.parametrize("schedule", ["step", "cosine"])
def test_adaptive_steps_by_hand(kind: str, schedule: str) -> None:
    settings = TrainingSettings(
        epochs=STEPS,
        batch=4,
        optimizer=kind,  # type: ignore[arg-type]
        learning_rate=0.1,
        weight_decay=0.5,
        schedule=schedule,  # type: ignore[arg-type]
        warm_up=0,
        decay_at=(0.5,),
        decay_factor=0.2,
    )
    weight, mean, square = 2.0, 0.0, 0.0
    for step in range(STEPS):
        factor = 0.5 * (1 + math.cos(math.pi * step / STEPS)) if schedule == "cosine" else (0.2 if step >= 2 else 1)
        rate, gradient = 0.1 * factor, 2 * weight
        if kind == "adam":
            gradient += 0.5 * weight
        else:
            weight -= rate * 0.5 * weight
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        unbiased = mean / (1 - 0.9 ** (step + 1)), square / (1 - 0.999 ** (step + 1))
        weight -= rate * unbiased[0] / (math.sqrt(unbiased[1]) + 1e-8)
    assert _trained(settings) == pytest.approx(weight, rel=1e-9)


def test_gradients_are_cut_off_at_the_limit() -> None:
    plain = TrainingSettings(
        epochs=1, batch=4, learning_rate=0.1, momentum=0, weight_decay=0, schedule="step", gradient_limit=3
    )
    # The gradient is 4, then 2 · 1.7, then 2 · 1.4, which is within the limit.
    for steps, weight in ((1, 1.7), (2, 1.4), (3, 1.4 - 0.28)):
        settings = TrainingSettings(**{**plain.__dict__, "epochs": steps})
        assert _trained(settings) == pytest.approx(weight, rel=1e-12)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_stopped_training_goes_on_as_if_it_were_not(kind: str, tmp_path: Path) -> None:
    settings = TrainingSettings(epochs=6, batch=4, optimizer=kind, learning_rate=0.1)  # type: ignore[arg-type]
    keeping = Keeping(tmp_path / "state.safetensors", seconds=0)
    first = _loop(settings, keeping)
    first.last_step = 3
    first.run()
    second = _loop(settings, keeping)
    second.run()
    assert isinstance(second.work, Square)
    assert second.work.number.weight.item() == _trained(settings) != _trained(settings, last=3)
