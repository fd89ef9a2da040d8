import pytest
import torch
from torch import Tensor

from inlay.discovery.consistency import view_consistency
from inlay.discovery.student import student_assignments


def _probabilities(seed: int) -> Tensor:
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return logits.softmax(dim=1)


def test_equals_the_loops() -> None:
    first, second = _probabilities(0), _probabilities(1)
    total = 0.0
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        total += sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    assert view_consistency(first, second).item() == pytest.approx(total / 20, rel=1e-12)


def test_by_hand() -> None:
    first, second = torch.tensor([[0.75, 0.25]]), torch.tensor([[0.5, 0.5]])
    assert view_consistency(first, second).item() == 1 / 16


def test_takes_soft_assignments_as_they_are() -> None:
    points = torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    centres = torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    # The assignments are (2/3, 1/3) and (1/3, 2/3).
    assigned = student_assignments(points, centres)
    assert view_consistency(assigned, assigned.flip(0)).item() == pytest.approx(1 / 9, rel=1e-12)


def test_gradients_are_right_and_reach_both_views() -> None:
    first, second = _probabilities(2).requires_grad_(), _probabilities(3).requires_grad_()
    assert torch.autograd.gradcheck(view_consistency, (first, second))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_certain_and_opposite_views_give_the_largest_value(dtype: torch.dtype) -> None:
    first = torch.tensor([[1.0, 0.0]], dtype=dtype)
    assert view_consistency(first, 1 - first).item() == 1


def test_is_computed_in_at_least_single_precision() -> None:
    half, double = torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16), torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    assert view_consistency(half, half).dtype == torch.float32
    assert view_consistency(half, double).item() == pytest.approx(0.01, rel=1e-12)


def test_is_one_graph() -> None:
    first, second = _probabilities(4), _probabilities(5)
    compiled = torch.compile(view_consistency, fullgraph=True, dynamic=False, backend="aot_eager")
    torch.testing.assert_close(compiled(first, second), view_consistency(first, second))


def test_bad_input_is_refused() -> None:
    rows = _probabilities(0)
    for first, second in ((rows, rows[:1]), (rows[0], rows[0]), (rows[:0], rows[:0])):
        with pytest.raises(ValueError, match="both views"):
            view_consistency(first, second)
