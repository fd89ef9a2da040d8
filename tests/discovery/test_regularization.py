import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.discovery.regularization import divergence_from_uniform


def _reference(logits: list[list[float]]) -> float:
    classes = len(logits[0])
    mean = [0.0] * classes
    for row in logits:
        total = sum(math.exp(value) for value in row)
        for k, value in enumerate(row):
            mean[k] += math.exp(value) / total / len(logits)
    return math.log(classes) + sum(p * math.log(p) for p in mean if p > 0)


ROWS = st.integers(1, 6).flatmap(
    lambda k: st.lists(st.lists(st.floats(-20, 20), min_size=k, max_size=k), min_size=1, max_size=6)
)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(ROWS)
def test_equals_the_loop_reference_and_stays_in_range(logits: list[list[float]]) -> None:
    value = divergence_from_uniform(torch.tensor(logits, dtype=torch.float64)).item()
    assert value == pytest.approx(_reference(logits), abs=1e-9)
    assert -1e-9 <= value <= math.log(len(logits[0])) + 1e-9


def test_collapse_costs_log_k_and_balance_costs_nothing() -> None:
    balanced = 100 * torch.eye(4, dtype=torch.float64)
    assert divergence_from_uniform(balanced).item() == pytest.approx(0, abs=1e-12)
    collapsed = balanced[:1].repeat(8, 1)
    assert divergence_from_uniform(collapsed).item() == pytest.approx(math.log(4))


def test_descent_leads_away_from_collapse() -> None:
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0]], requires_grad=True)
    divergence_from_uniform(logits).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert (logits.grad[:, 0] > 0).all() and (logits.grad[:, 1] < 0).all()


def test_gradient_is_finite_for_vanishing_probabilities() -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4]]).repeat(3, 1).requires_grad_()
    divergence_from_uniform(logits).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None and torch.isfinite(logits.grad).all()
