import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inlay.discovery.assignment import assignment_of_first, sinkhorn, swapped_assignment


def _scores(seed: int, images: int = 8, prototypes: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(images, prototypes, generator=generator, dtype=torch.float64)


def _reference(scores: Tensor, epsilon: float, iterations: int) -> list[list[float]]:
    plan = [[math.exp(value / epsilon) for value in row] for row in scores.tolist()]
    images, prototypes = len(plan), len(plan[0])
    for _ in range(iterations):
        for k in range(prototypes):
            column = sum(row[k] for row in plan)
            for row in plan:
                row[k] *= images / prototypes / column
        for row in plan:
            total = sum(row)
            row[:] = [value / total for value in row]
    return plan


@pytest.mark.parametrize("iterations", [1, 3, 7])
def test_sinkhorn_equals_the_loop_reference(iterations: int) -> None:
    scores = _scores(17)
    expected = torch.tensor(_reference(scores, 0.1, iterations), dtype=torch.float64)
    torch.testing.assert_close(sinkhorn(scores, 0.1, iterations), expected)


def test_many_iterations_balance_both_marginals() -> None:
    plan = sinkhorn(_scores(18, 12, 4), epsilon=0.05, iterations=2000)
    torch.testing.assert_close(plan.sum(dim=1), torch.ones(12, dtype=torch.float64))
    torch.testing.assert_close(plan.sum(dim=0), torch.full((4,), 3.0, dtype=torch.float64))


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    st.integers(1, 5).flatmap(
        lambda k: st.lists(st.lists(st.floats(-1e4, 1e4), min_size=k, max_size=k), min_size=1, max_size=6)
    )
)
def test_extreme_scores_stay_finite_with_rows_summing_to_one(rows: list[list[float]]) -> None:
    plan = sinkhorn(torch.tensor(rows, dtype=torch.float32))
    assert torch.isfinite(plan).all() and (plan >= 0).all()
    torch.testing.assert_close(plan.sum(dim=1), torch.ones(len(rows)))


def test_a_constant_added_to_the_scores_changes_nothing() -> None:
    scores = _scores(19)
    torch.testing.assert_close(sinkhorn(scores + 5.0), sinkhorn(scores))


def test_half_precision_scores_give_float32_assignments() -> None:
    assert sinkhorn(_scores(20).bfloat16()).dtype == torch.float32


def test_swapped_assignment_equals_the_loop_reference() -> None:
    first, second = _scores(21), _scores(22)
    total = 0.0
    for scores, target in ((second, _reference(first, 0.05, 3)), (first, _reference(second, 0.05, 3))):
        for row, weights in zip(scores.tolist(), target, strict=True):
            normaliser = sum(math.exp(value / 0.2) for value in row)
            total -= sum(
                q * math.log(math.exp(value / 0.2) / normaliser) for q, value in zip(weights, row, strict=True)
            )
    expected = total / 2 / len(first)
    assert swapped_assignment(first, second, temperature=0.2).item() == pytest.approx(expected)


def test_swapped_assignment_is_the_mean_of_its_halves() -> None:
    first, second = _scores(21), _scores(22)
    halves = assignment_of_first(first, second, 0.2), assignment_of_first(second, first, 0.2)
    assert halves[0].item() != pytest.approx(halves[1].item())
    torch.testing.assert_close(swapped_assignment(first, second, 0.2), sum(halves) / 2)


def test_the_assignment_of_first_views_is_the_target_of_the_second() -> None:
    first, second = _scores(26).requires_grad_(), _scores(27).requires_grad_()
    from_first, from_second = torch.autograd.grad(
        assignment_of_first(first, second), (first, second), allow_unused=True
    )
    assert from_first is None
    expected = ((second / 0.1).softmax(dim=1) - sinkhorn(first)) / 0.1 / len(first)
    torch.testing.assert_close(from_second, expected.detach())


def test_targets_carry_no_gradient() -> None:
    first, second = _scores(23).requires_grad_(), _scores(24)
    (found,) = torch.autograd.grad(swapped_assignment(first, second), first)
    prediction = (first / 0.1).softmax(dim=1)
    expected = (prediction - sinkhorn(second)) / 0.1 / len(first) / 2
    torch.testing.assert_close(found, expected.detach())


def test_bad_input_is_refused() -> None:
    scores = _scores(25)
    with pytest.raises(ValueError, match="epsilon"):
        sinkhorn(scores, epsilon=0.0)
    with pytest.raises(ValueError, match="iterations"):
        sinkhorn(scores, iterations=0)
    with pytest.raises(ValueError, match="one shape"):
        swapped_assignment(scores, scores[:2])
    with pytest.raises(ValueError, match="temperature"):
        swapped_assignment(scores, scores, temperature=0.0)
