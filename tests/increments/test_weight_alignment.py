import math

import pytest
import torch
from torch import Tensor

from inlay.increments.weight_alignment import aligned_weight


def _weight(seed: int) -> Tensor:
    return torch.randn(7, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _slow(weight: Tensor, old: int) -> list[list[float]]:
    rows: list[list[float]] = weight.tolist()
    lengths = [math.sqrt(sum(value * value for value in row)) for row in rows]
    factor = (sum(lengths[:old]) / old) / (sum(lengths[old:]) / (len(rows) - old))
    return rows[:old] + [[value * factor for value in row] for row in rows[old:]]


@pytest.mark.parametrize("old", [1, 4, 6])
def test_equals_the_loops(old: int) -> None:
    weight = _weight(old)
    before = weight.clone()
    torch.testing.assert_close(aligned_weight(weight, old), torch.tensor(_slow(weight, old), dtype=torch.float64))
    assert weight.equal(before)


def test_computed_by_hand() -> None:
    # Lengths 1 and 3 are 2 in the mean, 10 and 6 are 8: new rows are quartered.
    weight = torch.tensor([[1.0, 0.0], [0.0, 3.0], [6.0, 8.0], [-6.0, 0.0]])
    expected = torch.tensor([[1.0, 0.0], [0.0, 3.0], [1.5, 2.0], [-1.5, 0.0]])
    torch.testing.assert_close(aligned_weight(weight, 2), expected)


def test_old_rows_are_kept_bit_for_bit_and_means_agree() -> None:
    weight = _weight(9).float()
    aligned = aligned_weight(weight, 5)
    assert aligned.dtype == torch.float32
    assert aligned[:5].equal(weight[:5])
    lengths = aligned.norm(dim=1)
    torch.testing.assert_close(lengths[5:].mean(), lengths[:5].mean())


def test_finite_for_zeros_and_extremes() -> None:
    assert aligned_weight(torch.tensor([[1.0], [0.0]]), 1).tolist() == [[1.0], [0.0]]
    torch.testing.assert_close(aligned_weight(torch.tensor([[1e30], [-1e-30]]), 1), torch.tensor([[1e30], [-1e30]]))


@pytest.mark.parametrize("old", [0, 7, -1])
def test_without_old_or_new_classes_it_is_refused(old: int) -> None:
    with pytest.raises(ValueError, match="old_classes"):
        aligned_weight(_weight(0), old)


def test_a_vector_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[C, D\]"):
        aligned_weight(torch.ones(3), 1)
