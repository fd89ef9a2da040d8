import math

import pytest
import torch
from torch import Tensor

from inlay.discovery.triplet import mine, triplet_comparison


def _random(rows: int, columns: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


def _cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def _mined(features: Tensor) -> tuple[list[int], list[int]]:
    rows, positive, negative = features.tolist(), [], []
    for i, row in enumerate(rows):
        scores = {j: _cosine(row, other) for j, other in enumerate(rows) if j != i}
        positive.append(max(scores, key=lambda j: scores[j]))
        negative.append(min(scores, key=lambda j: scores[j]))
    return positive, negative


def _hinge(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float, classes: int) -> float:
    total = 0.0
    for a, p, n in zip(anchor.tolist(), positive.tolist(), negative.tolist(), strict=True):
        near = sum((x - y) ** 2 for x, y in zip(a, p, strict=True)) / classes
        far = sum((x - y) ** 2 for x, y in zip(a, n, strict=True)) / classes
        total += max(0.0, near - far + margin)
    return total / len(anchor)


def test_mining_equals_the_loop_reference() -> None:
    features = _random(12, 5, 3)
    positive, negative = mine(features)
    assert (positive.tolist(), negative.tolist()) == _mined(features)


def test_mining_never_returns_the_anchor_even_among_equal_rows() -> None:
    positive, negative = mine(torch.ones(4, 3))
    rows = torch.arange(4)
    assert (positive != rows).all() and (negative != rows).all()


@pytest.mark.parametrize(("margin", "classes"), [(1.0, None), (0.05, None), (0.05, 20)])
def test_comparison_equals_the_loop_reference(margin: float, classes: int | None) -> None:
    anchor, positive, negative = (_random(8, 4, seed).softmax(dim=1) for seed in (4, 5, 6))
    result = triplet_comparison(anchor, positive, negative, margin, classes)
    assert result.item() == pytest.approx(_hinge(anchor, positive, negative, margin, classes or 4))


def test_unit_margin_has_the_gradient_of_the_printed_equation() -> None:
    logits = _random(6, 2, 7).mul(20).requires_grad_()
    others = _random(6, 2, 8).softmax(dim=1), _random(6, 2, 9).softmax(dim=1)
    (hinge,) = torch.autograd.grad(triplet_comparison(logits.softmax(1), *others), logits)
    p = logits.softmax(1)
    printed = ((p - others[0]) ** 2 - (p - others[1]) ** 2).sum(1).mean() / 2
    (expected,) = torch.autograd.grad(printed, logits)
    torch.testing.assert_close(hinge, expected)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="two images"):
        mine(torch.ones(1, 3))
    with pytest.raises(ValueError, match="one shape"):
        triplet_comparison(torch.ones(3, 2), torch.ones(3, 2), torch.ones(1, 2))
