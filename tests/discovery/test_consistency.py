import math

import pytest
import torch
from torch import Tensor

from inlay.discovery.consistency import view_consistency


def _logits(seed: int) -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _softmax(row: list[float]) -> list[float]:
    exponentials = [math.exp(value) for value in row]
    return [value / sum(exponentials) for value in exponentials]


def test_equals_the_loops() -> None:
    first, second = _logits(0), _logits(1)
    total = 0.0
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        total += sum((x - y) ** 2 for x, y in zip(_softmax(a), _softmax(b), strict=True))
    assert view_consistency(first, second).item() == pytest.approx(total / 20, rel=1e-12)


def test_by_hand() -> None:
    # The probabilities are (3/4, 1/4) and (1/2, 1/2).
    first, second = torch.tensor([[math.log(3), 0.0]]), torch.zeros(1, 2)
    assert view_consistency(first, second).item() == pytest.approx(1 / 16, rel=1e-6)


def test_gradients_are_right_and_reach_both_views() -> None:
    first, second = _logits(2).requires_grad_(), _logits(3).requires_grad_()
    assert torch.autograd.gradcheck(view_consistency, (first, second))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_certain_and_opposite_views_give_the_largest_value(dtype: torch.dtype) -> None:
    first = torch.tensor([[1e30, -1e30]], dtype=dtype, requires_grad=True)
    loss = view_consistency(first, -first.detach())
    assert loss.item() == 1
    (gradient,) = torch.autograd.grad(loss, first)
    assert torch.isfinite(gradient).all()


def test_is_one_graph() -> None:
    first, second = _logits(4), _logits(5)
    compiled = torch.compile(view_consistency, fullgraph=True, dynamic=False, backend="aot_eager")
    torch.testing.assert_close(compiled(first, second), view_consistency(first, second))


def test_bad_input_is_refused() -> None:
    for first, second in ((_logits(0), _logits(0)[:1]), (_logits(0)[0], _logits(0)[0]), (_logits(0)[:0],) * 2):
        with pytest.raises(ValueError, match="both views"):
            view_consistency(first, second)
