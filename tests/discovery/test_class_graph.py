"""Counting classes by walks among images."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from inlay.discovery.class_graph import STEPS, count_by_graph, log_return_sums, walk_description
from inlay.discovery.statistics import ClassStatistics, class_statistics

SIZE = 24


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _groups(classes: int, images: int, seed: int, apart: float = 3.0) -> Tensor:
    randomness = _generator(seed)
    centres = apart * torch.randn(classes, SIZE, generator=randomness)
    labels = torch.arange(classes * images) % classes
    return centres[labels] + torch.randn(len(labels), SIZE, generator=randomness)


@pytest.fixture
def known() -> ClassStatistics:
    return class_statistics(_groups(8, 40, 99), torch.arange(320) % 8, 8, "pooled")


def _slow_return_sums(points: list[list[float]], neighbours: int) -> list[float]:
    count = len(points)
    edges = np.zeros((count, count))
    for here, point in enumerate(points):
        others = sorted((math.dist(point, points[there]), there) for there in range(count) if there != here)
        for _, there in others[:neighbours]:
            edges[here, there] += 0.5
            edges[there, here] += 0.5
    degrees = edges.sum(axis=1)
    walk = np.array([[edges[i, j] / degrees[i] for j in range(count)] for i in range(count)])
    power, found = np.eye(count), []
    for step in range(1, max(STEPS) + 1):
        power = power @ walk
        if step in STEPS:
            found.append(math.log(sum(power[i, i] for i in range(count))))
    return found


@pytest.mark.parametrize("neighbours", [1, 4])
def test_sums_are_the_chances_of_coming_back(neighbours: int) -> None:
    points = torch.randn(30, 3, generator=_generator(1), dtype=torch.float64)
    assert log_return_sums(points, neighbours) == pytest.approx(_slow_return_sums(points.tolist(), neighbours))


def test_walks_never_leave_groups_without_edges_between() -> None:
    points = _groups(6, 30, 2, apart=50.0)
    assert log_return_sums(points, 5)[-1] == pytest.approx(math.log(6), abs=0.35)


@pytest.mark.parametrize("classes", [2, 5, 10, 20])
def test_clear_groups_are_counted_about_right(classes: int, known: ClassStatistics) -> None:
    found = count_by_graph(_groups(classes, 60, classes), known, _generator(0))
    assert found.low <= classes <= found.high
    assert found.high <= 2 * found.low
    best = max(found.curve, key=lambda point: point.score)
    assert abs(best.k - found.estimate) <= 1


def test_more_groups_are_counted_as_more(known: ClassStatistics) -> None:
    counts = [count_by_graph(_groups(classes, 60, classes), known, _generator(0)).estimate for classes in (1, 4, 12)]
    assert counts == sorted(set(counts))


def test_a_count_depends_on_neither_scale_nor_order(known: ClassStatistics) -> None:
    pile = _groups(5, 60, 3)
    plain = walk_description(pile, known, _generator(0))
    larger = walk_description(100 * pile + 7, known, _generator(0))
    turned = walk_description(pile.flip(0), known, _generator(0))
    assert plain is not None and larger == pytest.approx(plain, abs=1e-3) and turned == pytest.approx(plain, abs=1e-3)


def test_of_many_images_some_are_drawn(known: ClassStatistics) -> None:
    described = walk_description(_groups(4, 500, 4), known, _generator(0))
    assert described is not None and described[-1] == math.log(1500)


def test_few_or_equal_images_are_one_class(known: ClassStatistics) -> None:
    for pile in (_groups(1, 3, 0), torch.ones(50, SIZE)):
        found = count_by_graph(pile, known, _generator(0))
        assert (found.estimate, found.low, found.high, found.curve) == (1, 1, 1, ())


def test_no_more_classes_than_half_of_the_images(known: ClassStatistics) -> None:
    for images in range(6, 12):
        found = count_by_graph(_groups(images, 1, 5), known, _generator(0))
        assert 1 <= found.estimate <= images / 2 + 0.5


def test_bad_features_are_refused(known: ClassStatistics) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        count_by_graph(torch.full((20, SIZE), torch.nan), known, _generator(0))
    with pytest.raises(ValueError, match="needs 1 to 4 neighbours, not 5"):
        log_return_sums(torch.rand(5, 2), 5)
