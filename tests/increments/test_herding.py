import math

import pytest
import torch
from torch import Tensor

from inlay.increments.herding import herd


def _random(seed: int, sizes: list[int], dimensions: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    features = torch.randn(len(labels), dimensions, generator=generator, dtype=torch.float64) + 0.5
    return features, labels


def _dot(first: list[float], second: list[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


def _slow_ranks(rows: list[list[float]], count: int, rounds: int = 1000) -> list[int]:
    units = [[value / math.sqrt(_dot(row, row)) for value in row] for row in rows]
    mean = [sum(column) / len(units) for column in zip(*units, strict=True)]
    sought, ranked = list(mean), list[int]()
    for _ in range(rounds):
        if len(ranked) == min(count, len(rows)):
            return ranked
        scores = [_dot(sought, unit) for unit in units]
        best = scores.index(max(scores))
        if best not in ranked:
            ranked.append(best)
        sought = [w + m - f for w, m, f in zip(sought, mean, units[best], strict=True)]
    return (ranked + [row for row in range(len(rows)) if row not in ranked])[:count]


def _slow_herd(features: Tensor, labels: Tensor, classes: int, count: int) -> list[list[int]]:
    chosen = []
    for label in range(classes):
        own = [index for index, other in enumerate(labels.tolist()) if other == label]
        ranks = _slow_ranks([features[index].tolist() for index in own], count) if own else []
        chosen.append([own[rank] for rank in ranks])
    return chosen


@pytest.mark.parametrize("count", [0, 1, 4, 20])
def test_equals_the_loops(count: int) -> None:
    features, labels = _random(0, [9, 0, 30, 4, 17])
    found = herd(features, labels, classes=6, count=count)
    assert [indices.tolist() for indices in found] == _slow_herd(features, labels, 6, count)
    assert [len(indices) for indices in found] == [min(count, size) for size in (9, 0, 30, 4, 17, 0)]


def test_computed_by_hand() -> None:
    # The mean is (2/3, 1/3), where the first direction and its copy lead; the first of them is taken. Then (1/3, 2/3)
    # takes the second direction and (1, 0) the first once more, which leads back to the mean. So the copy is never
    # taken and comes last.
    features = torch.tensor([[2.0, 0.0], [0.0, 5.0], [1.0, 0.0]])
    assert herd(features, torch.zeros(3, dtype=torch.int64), 1, 3)[0].tolist() == [0, 1, 2]


def test_an_image_taken_again_is_not_ranked_twice() -> None:
    features, labels = _random(1, [12], dimensions=2)
    (found,) = herd(features, labels, 1, 12)
    expected = _slow_ranks(features.tolist(), 12)
    assert found.tolist() == expected
    assert expected != _slow_ranks(features.tolist(), 12, rounds=12), "no image was taken again"


def test_fewer_are_a_prefix() -> None:
    features, labels = _random(2, [15, 25])
    many = herd(features, labels, 2, 15)
    for count in range(15):
        few = herd(features, labels, 2, count)
        assert [indices.tolist() for indices in few] == [indices[:count].tolist() for indices in many]


def test_a_class_is_ranked_as_if_alone() -> None:
    features, labels = _random(3, [8, 21, 13])
    together = herd(features, labels, 3, 10)
    for label in range(3):
        own = (labels == label).nonzero().squeeze(1)
        (alone,) = herd(features[own], torch.zeros(len(own), dtype=torch.int64), 1, 10)
        assert own[alone].tolist() == together[label].tolist()


def test_only_directions_count() -> None:
    features, labels = _random(4, [10, 10])
    lengths = torch.linspace(0.1, 1e6, 20, dtype=torch.float64)[:, None]
    plain, scaled = herd(features, labels, 2, 6), herd(features * lengths, labels, 2, 6)
    assert [indices.tolist() for indices in plain] == [indices.tolist() for indices in scaled]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_images_rank_in_the_order_given(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(1, 37, generator=generator, dtype=dtype).expand(23, -1)
    assert herd(features, torch.zeros(23, dtype=torch.int64), 1, 23)[0].tolist() == list(range(23))


def test_zeros_and_extremes_are_ranked() -> None:
    features = torch.tensor([[0.0, 0.0], [1e30, -1e30], [1e-30, 0.0], [0.0, 0.0]])
    assert sorted(herd(features, torch.zeros(4, dtype=torch.int64), 1, 4)[0].tolist()) == [0, 1, 2, 3]


def test_no_images_give_no_exemplars() -> None:
    assert [len(part) for part in herd(torch.empty(0, 3), torch.empty(0, dtype=torch.int64), 2, 5)] == [0, 0]


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, -1, 0]])
def test_labels_out_of_range_are_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match=r"0\.\.1"):
        herd(torch.ones(3, 2), torch.tensor(labels), 2, 1)


def test_other_shapes_and_counts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[N, D\]"):
        herd(torch.ones(3, 2), torch.zeros(2, dtype=torch.int64), 1, 1)
    with pytest.raises(ValueError, match="count"):
        herd(torch.ones(3, 2), torch.zeros(3, dtype=torch.int64), 1, -1)
