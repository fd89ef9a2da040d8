import math

import pytest

from inlay.engine.schedule import cosine, step_decay


@pytest.mark.parametrize(
    ("progress", "factor"),
    [
        (0.0, 0.01),
        (0.025, 0.25),
        (0.05, 0.5),
        (0.1, 1.0),
        (0.1 + 0.9 / 4, (2 + math.sqrt(2)) / 4),
        (0.1 + 0.9 / 3, 0.75),
        (0.55, 0.5),
        (0.1 + 0.9 * 2 / 3, 0.25),
        (1.0, 0.0),
    ],
)
def test_cosine_at_hand_computed_points(progress: float, factor: float) -> None:
    assert cosine(progress) == pytest.approx(factor, abs=1e-12)


def test_cosine_without_warm_up() -> None:
    assert [cosine(progress, warm_up=0.0) for progress in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.5, 0.0])


def test_cosine_rises_then_falls() -> None:
    factors = [cosine(step / 200) for step in range(201)]
    assert factors[:21] == sorted(factors[:21])
    assert factors[20:] == sorted(factors[20:], reverse=True)


@pytest.mark.parametrize(
    ("progress", "factor"), [(0.0, 1.0), (0.49, 1.0), (0.5, 0.1), (0.74, 0.1), (0.75, 0.01), (1.0, 0.01)]
)
def test_step_decay_at_hand_computed_points(progress: float, factor: float) -> None:
    assert step_decay(progress, (0.5, 0.75)) == pytest.approx(factor)


def test_step_decay_without_decays() -> None:
    assert step_decay(1.0, ()) == 1.0


def test_decays_by_another_factor() -> None:
    assert [step_decay(progress, (0.5, 0.75), 0.2) for progress in (0.4, 0.6, 0.8)] == pytest.approx([1, 0.2, 0.04])
