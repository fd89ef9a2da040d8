import random

import pytest

from inlay.bench.datasets import benchmark
from inlay.bench.schedule import published_stage_length
from inlay.engine.order import Order
from inlay.errors import InlayError

IMAGES_PER_CLASS = {"cifar10": 5000, "cifar100": 500}


def novel_images_of_mixed_batches(base: int, novel: int, per_class: int) -> list[int]:
    """Shuffle the images of old and novel classes, cut them into batches of 128 and count the novel ones of each."""
    labels = [label for label in range(base + novel) for _ in range(per_class)]
    random.Random(0).shuffle(labels)
    counts = []
    for start in range(0, len(labels), 128):
        counts.append(sum(1 for label in labels[start : start + 128] if label >= base))
    return counts


@pytest.mark.parametrize(("dataset", "steps"), [("cifar10", 1), ("cifar100", 1), ("cifar100", 2)])
def test_novel_images_alone_come_in_steps_like_those_of_mixed_batches(dataset: str, steps: int) -> None:
    data, per_class = benchmark(dataset), IMAGES_PER_CLASS[dataset]
    base, novel, *_ = data.cut(steps)
    counts = novel_images_of_mixed_batches(base, novel, per_class)
    batch = published_stage_length(data, steps)["training.batch"]
    assert abs(batch - sum(counts) / len(counts)) < 0.6
    order = Order(novel * per_class, batch, seed=0)
    assert order.batch == batch
    assert order.steps == pytest.approx(len(counts), rel=0.02)


def test_steps_of_the_published_length() -> None:
    assert Order(25_000, published_stage_length(benchmark("cifar10"), 1)["training.batch"], seed=0).steps == 391
    assert Order(10_000, published_stage_length(benchmark("tinyimagenet"), 1)["training.batch"], seed=0).steps == 79


def test_a_cut_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InlayError, match="cifar10 is not cut into 2 discovery stages"):
        published_stage_length(benchmark("cifar10"), 2)
