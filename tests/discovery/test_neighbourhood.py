import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.discovery.neighbourhood import neighbourhood_contrastive
from inlay.discovery.queue import FeatureQueue


def _random(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _data(noise: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    query = _random(6, 4, 0)
    return query, query + noise * _random(6, 4, 1), F.normalize(_random(9, 4, 2), dim=1)


def _target(logits: list[float], neighbours: int, share: float, quirk: bool) -> list[float]:
    candidates = range(len(logits)) if quirk else range(1, len(logits))
    ranked = sorted(candidates, key=lambda entry: -logits[entry])
    target = [0.0] * len(logits)
    for entry in ranked[:neighbours]:
        target[entry] = (1 - share) / neighbours
    target[0] = share
    return target


def _slow(
    query: Tensor, key: Tensor, queue: Tensor, neighbours: int, temperature: float, share: float, quirk: bool
) -> float:
    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    total = 0.0
    for v, other in zip(query.tolist(), key.tolist(), strict=True):
        logits = [cosine(v, m) / temperature for m in [other, *queue.tolist()]]
        normaliser = math.log(sum(math.exp(logit) for logit in logits))
        target = _target(logits, neighbours, share, quirk)
        total -= sum(weight * (logit - normaliser) for weight, logit in zip(target, logits, strict=True))
    return total / len(query)


# Similarities of the query (1, 0) to the queue: 1, 0 and -1.
QUEUE = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
QUERY = torch.tensor([[2.0, 0.0]], dtype=torch.float64)


def test_clean_target_by_hand() -> None:
    key = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    normaliser = math.log(math.exp(0.6) + math.e + 1 + math.exp(-1))
    # The target is 0.2 on the key and 0.4 on each of the first two entries.
    expected = normaliser - 0.2 * 0.6 - 0.4 * 1 - 0.4 * 0
    found = neighbourhood_contrastive(QUERY, key, QUEUE, 2, temperature=1.0, share=0.2)
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_published_target_by_hand() -> None:
    key = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    normaliser = math.log(math.exp(0.6) + math.e + 1 + math.exp(-1))
    # The key is second among all: it takes the place of the second entry and keeps 0.2, so the sum is 0.6.
    expected = 0.6 * normaliser - 0.2 * 0.6 - 0.4 * 1
    found = neighbourhood_contrastive(QUERY, key, QUEUE, 2, temperature=1.0, share=0.2, quirk=True)
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_published_target_is_clean_where_the_key_is_not_among_the_nearest() -> None:
    key = torch.tensor([[-0.6, 0.8]], dtype=torch.float64)
    normaliser = math.log(math.exp(-0.6) + math.e + 1 + math.exp(-1))
    expected = normaliser - 0.2 * -0.6 - 0.4 * 1 - 0.4 * 0
    for quirk in (False, True):
        found = neighbourhood_contrastive(QUERY, key, QUEUE, 2, temperature=1.0, share=0.2, quirk=quirk)
        assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("quirk", [False, True])
@pytest.mark.parametrize("noise", [0.1, 3.0])
@pytest.mark.parametrize(("neighbours", "share"), [(1, 0.2), (4, 0.2), (9, 0.5), (4, 0.0), (4, 1.0)])
def test_equals_the_loops(neighbours: int, share: float, noise: float, quirk: bool) -> None:
    query, key, queue = _data(noise)
    found = neighbourhood_contrastive(query, key, queue, neighbours, 0.3, share, quirk)
    assert found.item() == pytest.approx(_slow(query, key, queue, neighbours, 0.3, share, quirk), rel=1e-12)


@pytest.mark.parametrize("quirk", [False, True])
def test_gradients_are_right_and_reach_the_query_alone(quirk: bool) -> None:
    query, key, queue = _data()
    query.requires_grad_()
    assert torch.autograd.gradcheck(lambda q: neighbourhood_contrastive(q, key, queue, 3, quirk=quirk), (query,))
    key.requires_grad_()
    queue.requires_grad_()
    loss = neighbourhood_contrastive(query, key, queue, 3, quirk=quirk)
    reached = [found is not None for found in torch.autograd.grad(loss, (query, key, queue), allow_unused=True)]
    assert reached == [True, False, False]


@pytest.mark.parametrize("quirk", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_extreme_features_give_finite_losses_and_gradients(dtype: torch.dtype, quirk: bool) -> None:
    query = torch.tensor([[0.0, 0.0], [1e18, 0.0], [1e-18, 1e-18], [-1.0, 0.0]], dtype=dtype, requires_grad=True)
    key = torch.tensor([[1.0, 0.0], [-1e18, 0.0], [0.0, 0.0], [1.0, 0.0]], dtype=dtype)
    loss = neighbourhood_contrastive(query, key, QUEUE, 3, temperature=1e-3, quirk=quirk)
    (gradient,) = torch.autograd.grad(loss, query)
    assert torch.isfinite(loss) and torch.isfinite(gradient).all()


@pytest.mark.parametrize("quirk", [False, True])
def test_loss_and_push_are_one_graph(quirk: bool) -> None:
    eager, traced = (FeatureQueue(8, 4, torch.Generator().manual_seed(3), torch.float64) for _ in range(2))

    def step(past: FeatureQueue, query: Tensor, key: Tensor) -> Tensor:
        loss = neighbourhood_contrastive(query, key, past.entries(), 3, quirk=quirk)
        past.push(query)
        return loss

    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend="aot_eager")
    for seed in range(2):
        query, key = _random(6, 4, seed).requires_grad_(), _random(6, 4, seed + 9)
        found, expected = compiled(traced, query, key), step(eager, query, key)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, query), torch.autograd.grad(expected, query))
        torch.testing.assert_close(traced.features, eager.features)


def test_bad_input_is_refused() -> None:
    query, key, queue = _data()
    with pytest.raises(ValueError, match="query and key"):
        neighbourhood_contrastive(query, key[:3], queue, 2)
    with pytest.raises(ValueError, match="the queue must be"):
        neighbourhood_contrastive(query, key, queue[:, :3], 2)
    for neighbours in (0, 10):
        with pytest.raises(ValueError, match=r"1\.\.9"):
            neighbourhood_contrastive(query, key, queue, neighbours)
    with pytest.raises(ValueError, match="temperature"):
        neighbourhood_contrastive(query, key, queue, 2, temperature=0.0)
    with pytest.raises(ValueError, match="share"):
        neighbourhood_contrastive(query, key, queue, 2, share=1.1)
