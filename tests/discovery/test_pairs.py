import math

import pytest
import torch
from torch import Tensor

from inlay.discovery.pairs import cosine_pairs, extreme_pairs, pairwise_bce, rank_pairs


def _random(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _order(row: list[float]) -> list[int]:
    """Columns from the largest value to the smallest, lower columns first among equals."""
    return sorted(range(len(row)), key=lambda column: (-row[column], column))


def _slow_bce(first: Tensor, second: Tensor, pairs: Tensor, epsilon: float, mask: Tensor | None = None) -> float:
    total, images = 0.0, len(first)
    for i in range(images):
        for j in range(images):
            same = sum(a * b for a, b in zip(first[i].tolist(), second[j].tolist(), strict=True))
            label = pairs[i, j].item()
            loss = -label * math.log(same + epsilon) - (1 - label) * math.log(1 - same + epsilon)
            total += loss if mask is None else loss * mask[i, j].item()
    return total / images**2


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_rank_pairs_equal_the_loops(k: int) -> None:
    features = _random(30, 6, 0)
    largest = [set(_order(row)[:k]) for row in features.tolist()]
    expected = [[float(a == b) for b in largest] for a in largest]
    found = rank_pairs(features, k)
    assert found.tolist() == expected
    assert found.dtype == torch.float64
    assert k == 6 or 30 < found.sum() < 900


def test_the_order_among_the_largest_does_not_count() -> None:
    features = torch.tensor([[3.0, 2.0, 1.0, 0.0], [2.0, 3.0, 0.0, 1.0], [3.0, 1.0, 2.0, 0.0]])
    assert rank_pairs(features, 2).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert rank_pairs(features, 3).tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]


def test_rank_pairs_take_equal_features_in_order() -> None:
    # With one feature that is not 0, as after a ReLU, the second place goes to the lowest dimension.
    features = torch.tensor([[0.0, 5.0, 0.0, 0.0], [5.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 5.0]])
    assert rank_pairs(features, 2).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("threshold", [-0.2, 0.5, 0.95])
def test_cosine_pairs_equal_the_loops(threshold: float) -> None:
    features = torch.cat([_random(6, 3, 1), _random(6, 3, 1) + 0.1 * _random(6, 3, 2)])
    rows = features.tolist()
    expected = []
    for a in rows:
        cosines = [sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b) for b in rows]
        expected.append([float(cosine > threshold) for cosine in cosines])
    found = cosine_pairs(features, threshold)
    assert found.tolist() == expected
    assert 12 < found.sum() < 144


def test_an_image_is_its_own_cosine_pair_even_with_features_of_0() -> None:
    features = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    assert torch.equal(cosine_pairs(features), torch.eye(3))
    assert torch.equal(cosine_pairs(_random(9, 4, 3), threshold=1.0), torch.eye(9, dtype=torch.float64))


@pytest.mark.parametrize(("images", "count"), [(9, 3), (8, 4), (7, 4), (7, 10), (2, 10), (1, 10)])
def test_extreme_pairs_equal_the_loops(images: int, count: int) -> None:
    scores = _random(images, images, 4)
    labels, mask = extreme_pairs(scores, count)
    positives, negatives = min(count, math.ceil(images / 2)), min(count, images // 2)
    for i, row in enumerate(scores.tolist()):
        order = _order(row)
        positive = {*order[:positives], i}
        negative = set(order[images - negatives :]) - positive
        assert labels[i].tolist() == [float(j in positive) for j in range(images)]
        assert mask[i].tolist() == [float(j in positive | negative) for j in range(images)]


def test_extreme_pairs_of_equal_scores_are_not_both() -> None:
    labels, mask = extreme_pairs(torch.ones(6, 6), 2)
    assert labels[0].tolist() == [1, 1, 0, 0, 0, 0]
    assert mask[0].tolist() == [1, 1, 0, 0, 1, 1]
    assert labels[3].tolist() == [1, 1, 0, 1, 0, 0]
    assert labels[5].tolist() == [1, 1, 0, 0, 0, 1]
    assert mask[5].tolist() == [1, 1, 0, 0, 1, 1]


def test_bce_by_hand() -> None:
    first, second = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.75, 0.25], [0.0, 1.0]])
    # The inner products are 0.75 and 0 in the first row, 0.5 and 0.5 in the second.
    terms = [-math.log(0.76), -math.log(1.01), -math.log(0.51), -math.log(0.51)]
    assert pairwise_bce(first, second, torch.eye(2), 0.01).item() == pytest.approx(sum(terms) / 4, rel=1e-6)
    some = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    masked = pairwise_bce(first, second, torch.eye(2), 0.01, some)
    assert masked.item() == pytest.approx((terms[0] + terms[2]) / 4, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-7, 0.01])
def test_bce_equals_the_loops(epsilon: float) -> None:
    first, second = (_random(7, 4, seed).mul(3).softmax(dim=1) for seed in (5, 6))
    pairs = rank_pairs(first, 1)
    assert pairwise_bce(first, second, pairs, epsilon).item() == pytest.approx(
        _slow_bce(first, second, pairs, epsilon), rel=1e-12
    )
    labels, mask = extreme_pairs(first @ first.T, 2)
    assert mask.sum() < mask.numel()
    assert pairwise_bce(second, second, labels, epsilon, mask).item() == pytest.approx(
        _slow_bce(second, second, labels, epsilon, mask), rel=1e-12
    )


def test_gradients_are_right_and_reach_both_views() -> None:
    first, second = (_random(4, 3, seed).requires_grad_() for seed in (7, 8))
    labels, mask = extreme_pairs(_random(4, 4, 9), 1)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_bce(a.softmax(dim=1), b.softmax(dim=1), labels, mask=mask)

    assert torch.autograd.gradcheck(loss, (first, second))


def test_pairs_carry_no_gradient() -> None:
    features = _random(6, 6, 10).requires_grad_()
    assert not any(
        found.requires_grad for found in (rank_pairs(features, 2), cosine_pairs(features), *extreme_pairs(features, 2))
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_certain_predictions_give_finite_losses_and_gradients(dtype: torch.dtype, label: float) -> None:
    logits = torch.tensor([[1e30, -1e30], [-1e30, 1e30], [0.0, 0.0]], dtype=dtype, requires_grad=True)
    p = logits.softmax(dim=1)
    loss = pairwise_bce(p, p, torch.full((3, 3), label))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.isfinite(loss) and torch.isfinite(gradient).all()


def test_products_rounded_above_1_are_certain() -> None:
    p = torch.full((2, 1), 1 + 3e-7, requires_grad=True)
    loss = pairwise_bce(p, p, torch.zeros(2, 2))
    assert loss.item() == pytest.approx(-math.log(1e-7), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, p)
    assert torch.isfinite(gradient).all()


def test_everything_is_one_graph() -> None:
    def losses(features: Tensor, logits: Tensor) -> Tensor:
        p = logits.softmax(dim=1)
        labels, mask = extreme_pairs(p @ p.T, 2)
        ranked, close = rank_pairs(features, 2), cosine_pairs(features, 0.5)
        return pairwise_bce(p, p, ranked) + pairwise_bce(p, p, close) + pairwise_bce(p, p, labels, mask=mask)

    features, logits = _random(8, 5, 11), _random(8, 3, 12).requires_grad_()
    compiled = torch.compile(losses, fullgraph=True, dynamic=False, backend="aot_eager")
    found, expected = compiled(features, logits), losses(features, logits)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, logits), torch.autograd.grad(expected, logits))


def test_bad_input_is_refused() -> None:
    for k in (0, 4):
        with pytest.raises(ValueError, match=r"k in 1\.\.D"):
            rank_pairs(torch.ones(2, 3), k)
    with pytest.raises(ValueError, match="threshold"):
        cosine_pairs(torch.ones(2, 3), 95.0)
    with pytest.raises(ValueError, match=r"\[B, B\]"):
        extreme_pairs(torch.ones(2, 3))
    with pytest.raises(ValueError, match="count"):
        extreme_pairs(torch.ones(2, 2), 0)
    p = torch.full((3, 2), 0.5)
    with pytest.raises(ValueError, match="both views"):
        pairwise_bce(p, p[:2], torch.ones(3, 3))
    with pytest.raises(ValueError, match="pairs and mask"):
        pairwise_bce(p, p, torch.ones(3, 2))
    with pytest.raises(ValueError, match="pairs and mask"):
        pairwise_bce(p, p, torch.ones(3, 3), mask=torch.ones(3))
    with pytest.raises(ValueError, match="epsilon"):
        pairwise_bce(p, p, torch.ones(3, 3), 0.0)
