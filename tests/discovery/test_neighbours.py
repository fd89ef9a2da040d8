import math

import pytest
import torch
from torch import Tensor

from inlay.data.draws import Draws
from inlay.discovery.neighbours import draw_partners, nearest_neighbours


def slow_neighbours(features: Tensor, count: int) -> list[list[int]]:
    rows = features.tolist()

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    found = []
    for i, row in enumerate(rows):
        others = [(-cosine(row, other), j) for j, other in enumerate(rows) if j != i]
        found.append([j for _, j in sorted(others)[:count]])
    return found


@pytest.mark.parametrize("chunk", [1, 7, 20, 4096])
@pytest.mark.parametrize("count", [1, 5, 19])
def test_equals_the_loops(chunk: int, count: int) -> None:
    features = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert nearest_neighbours(features, count, chunk).tolist() == slow_neighbours(features, count)


def test_length_does_not_count() -> None:
    features = torch.tensor([[1.0, 0.0], [100.0, 1.0], [1.0, 0.5]])
    assert nearest_neighbours(features, 2).tolist() == [[1, 2], [0, 2], [1, 0]]


def test_equals_are_taken_from_the_lowest_position() -> None:
    axes = torch.eye(3)
    features = axes[[1, 0, 0, 1, 0, 2, 0, 0]]
    found = nearest_neighbours(features, 3)
    assert found[1].tolist() == [2, 4, 6]
    assert found[7].tolist() == [1, 2, 4]
    assert found[0].tolist() == [3, 1, 2]
    assert found[5].tolist() == [0, 1, 2]
    assert torch.equal(nearest_neighbours(features, 3, chunk=3), found)


def test_a_zero_vector_has_neighbours_too() -> None:
    features = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert nearest_neighbours(features, 2).tolist() == [[1, 2], [0, 2], [0, 1]]


@pytest.mark.parametrize("held", [1, 60, 2**26])
def test_rows_held_at_a_time_do_not_matter(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    features = torch.randn(20, 3, generator=torch.Generator().manual_seed(4))
    monkeypatch.setattr("inlay.discovery.neighbours._SIMILARITIES", held)
    assert nearest_neighbours(features, 4).tolist() == slow_neighbours(features, 4)


@pytest.mark.parametrize(("count", "chunk"), [(0, 4), (5, 4), (1, 0)])
def test_rejects_bad_counts(count: int, chunk: int) -> None:
    with pytest.raises(ValueError, match=r"count in 1\.\.N - 1"):
        nearest_neighbours(torch.ones(5, 2), count, chunk)


def test_rejects_features_that_are_not_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        nearest_neighbours(torch.tensor([[1.0], [math.nan], [2.0]]), 1)


def test_partners_are_neighbours_or_the_image_itself() -> None:
    neighbours = torch.tensor([[1, 2, 3], [0, 2, 3], [3, 0, 1], [2, 1, 0]])
    indices = torch.tensor([2, 0, 3]).repeat(4000)
    partners = draw_partners(indices, neighbours, 0.6, Draws(0, torch.arange(12_000)))
    itself = partners == indices
    assert itself.float().mean().item() == pytest.approx(0.4, abs=0.02)
    for image in (2, 0, 3):
        drawn = partners[(indices == image) & ~itself]
        shares = torch.stack([(drawn == other).float().mean() for other in neighbours[image]])
        assert shares.sum().item() == pytest.approx(1)
        torch.testing.assert_close(shares, torch.full((3,), 1 / 3), atol=0.04, rtol=0)


def test_share_of_none_and_of_all() -> None:
    neighbours = torch.tensor([[1], [2], [0]])
    indices = torch.tensor([2, 2, 1, 0])
    draws = Draws(0, indices)
    assert torch.equal(draw_partners(indices, neighbours, 0, draws), indices)
    assert draw_partners(indices, neighbours, 1, draws).tolist() == [0, 0, 2, 1]


def test_partners_follow_the_draws() -> None:
    neighbours = nearest_neighbours(torch.randn(30, 3, generator=torch.Generator().manual_seed(0)), 5)
    indices = torch.arange(30)
    first, again, other = (draw_partners(indices, neighbours, 0.5, Draws(key, indices)) for key in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    # An image finds the same partner whatever else is in its batch.
    some = torch.tensor([20, 3, 3, 29])
    assert torch.equal(draw_partners(some, neighbours, 0.5, Draws(1, some)), first[some])


def test_rejects_bad_shares_and_shapes() -> None:
    draws = Draws(0, torch.arange(2))
    with pytest.raises(ValueError, match="share"):
        draw_partners(torch.arange(2), torch.zeros(2, 1, dtype=torch.int64), 1.5, draws)
    with pytest.raises(ValueError, match=r"neighbours \[N, count\]"):
        draw_partners(torch.arange(2), torch.zeros(2, 0, dtype=torch.int64), 0.5, draws)
