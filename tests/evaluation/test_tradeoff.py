import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inlay.evaluation.metrics import score
from inlay.evaluation.tradeoff import tradeoff

OLD, OUTPUTS = 3, 5


def _case(images: int, seed: int, steps: int | None = None) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Logits and truth with images of both kinds; `steps` rounds the logits, so that many are equal."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(images, OUTPUTS))
    if steps is not None:
        logits = np.round(logits * steps) / steps
    truth = generator.integers(0, OUTPUTS, images)
    truth[:2] = [0, OLD]
    return logits, truth


def _slow_accuracies(logits: NDArray[np.float64], truth: NDArray[np.int64], bias: float) -> tuple[float, float]:
    """Add the bias to the new outputs and take the argmax of every image."""
    right: dict[bool, list[bool]] = {False: [], True: []}
    for row, wanted in zip(logits.tolist(), truth.tolist(), strict=True):
        moved = [value + bias if output >= OLD else value for output, value in enumerate(row)]
        right[wanted >= OLD].append(moved.index(max(moved)) == wanted)
    old, new = (sum(found) / len(found) for found in (right[False], right[True]))
    return old, new


# Multiples of a power of two add up without rounding, so that equal margins are equal in the loop too.
@given(st.integers(2, 25), st.integers(0, 10_000), st.sampled_from([1, 2, 64, 2**30]))
@settings(max_examples=60, deadline=None)
def test_every_point_against_the_loop(images: int, seed: int, steps: int) -> None:
    logits, truth = _case(images, seed, steps)
    points = tradeoff(logits, truth, OLD, points=10**6).points
    for bias, old, new in points:
        assert (old, new) == _slow_accuracies(logits, truth, bias)
    seen = {(old, new) for _, old, new in points}
    margins = sorted({a - b for row in logits.tolist() for a in row[:OLD] for b in row[OLD:]})
    between = [(low + high) / 2 for low, high in itertools.pairwise(margins)]
    everywhere = [*margins, *between, margins[0] - 1, margins[-1] + 1]
    assert {_slow_accuracies(logits, truth, bias) for bias in everywhere} == seen
    # One point for each state: none is repeated.
    assert len(seen) == len(points)


@given(st.integers(2, 12), st.integers(0, 10_000), st.sampled_from([1, 2**30]))
@settings(max_examples=40, deadline=None)
def test_the_area_is_the_share_of_pairs_that_one_bias_puts_right(images: int, seed: int, steps: int) -> None:
    logits, truth = _case(images, seed, steps)
    rows = list(zip(logits.tolist(), truth.tolist(), strict=True))
    total, pairs = 0.0, 0
    for (old_row, old_truth), (new_row, new_truth) in itertools.product(rows, rows):
        if old_truth >= OLD or new_truth < OLD:
            continue
        pairs += 1
        old_best, new_best = max(old_row[:OLD]), max(new_row[OLD:])
        if old_row[:OLD].index(old_best) != old_truth or new_row[OLD:].index(new_best) != new_truth - OLD:
            continue
        old_margin, new_margin = old_best - max(old_row[OLD:]), max(new_row[:OLD]) - new_best
        total += 1.0 if new_margin < old_margin else 0.5 if new_margin == old_margin else 0.0
    assert tradeoff(logits, truth, OLD).area == pytest.approx(total / pairs, abs=1e-12)


def test_ends_and_the_start_are_the_scores_of_the_heads() -> None:
    logits, truth = _case(400, seed=1)
    curve = tradeoff(logits, truth, OLD, points=10)
    scores = score(logits, truth, [0] * OLD + [1] * (OUTPUTS - OLD))
    first, last = curve.points[0], curve.points[-1]
    assert (first.old, first.new, last.old, last.new) == (scores.old_head, 0, 0, scores.new_head)
    assert [(point.old, point.new) for point in curve.points if point.bias == 0] == [(scores.old, scores.new)]


@pytest.mark.parametrize("limit", [3, 4, 10, 57])
def test_thinning_keeps_the_ends_and_bias_zero_and_the_area(limit: int) -> None:
    logits, truth = _case(400, seed=2)
    whole, few = tradeoff(logits, truth, OLD, points=10**6), tradeoff(logits, truth, OLD, points=limit)
    assert len(whole.points) > 100 >= limit >= len(few.points) >= limit - 1
    assert set(few.points) <= set(whole.points)
    assert (few.points[0], few.points[-1]) == (whole.points[0], whole.points[-1])
    assert 0.0 in [point.bias for point in few.points]
    assert few.area == whole.area
    biases = [point.bias for point in few.points]
    assert biases == sorted(set(biases))


def test_neighbouring_margins_are_kept_apart() -> None:
    margins = [1.0, math.nextafter(1.0, 2.0), math.nextafter(math.nextafter(1.0, 2.0), 2.0)]
    logits = np.array([[margin, 0.0] for margin in margins] + [[0.0, 1.0]])
    points = tradeoff(logits, [0, 0, 0, 1], old=1).points
    assert [round(3 * point.old) for point in points if point.new == 1.0] == [3, 2, 1, 0]
    assert (0.0, 1.0, 1.0) in points


def test_a_model_that_is_never_right_has_one_point() -> None:
    curve = tradeoff(torch.tensor([[0.0, 1.0, 2.0, 0.0], [0.0, 1.0, 2.0, 0.0]]), torch.tensor([0, 3]), old=2)
    assert curve.points == ((0.0, 0.0, 0.0),) and curve.area == 0


def test_a_perfect_model_has_area_one_and_survives_json() -> None:
    curve = tradeoff(np.eye(4), range(4), old=2)
    assert curve.area == 1
    assert json.loads(json.dumps(curve.to_json())) == {
        "points": [[-2.0, 1.0, 0.0], [0.0, 1.0, 1.0], [2.0, 0.0, 1.0]],
        "area": 1.0,
    }


@pytest.mark.parametrize(
    ("truth", "old", "points", "said"),
    [
        ([0, 2], 0, 3, "old must lie from 1 to 2"),
        ([0, 2], 3, 3, "old must lie from 1 to 2"),
        ([0, 2], 1, 2, "points must be at least 3"),
        ([0, 2, 1], 1, 3, "2 rows of logits but 3"),
        ([0, 3], 1, 3, "ids from 0 to 2"),
        ([0, -1], 1, 3, "ids from 0 to 2"),
        ([0, 0], 1, 3, "both old and new"),
        ([1, 2], 1, 3, "both old and new"),
    ],
)
def test_what_does_not_fit_is_refused(truth: list[int], old: int, points: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tradeoff(np.zeros((2, 3)), truth, old, points)


def test_infinite_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        tradeoff([[0.0, -math.inf], [0.0, 1.0]], [0, 1], old=1)
