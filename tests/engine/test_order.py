import math

import pytest
import torch
from torch import Tensor

from inlay.engine.order import Order
from inlay.engine.randomness import generator

CASES = [(images, most) for images in (1, 2, 7, 8, 9, 20, 31, 64, 65, 100, 257) for most in (1, 3, 8, 20, 32, 100)]


@pytest.mark.parametrize(
    ("images", "most", "steps", "batch"),
    [
        (12, 4, 3, 4),  # three batches of 4; rounded up to 8 they would be larger than the largest
        (14, 4, 4, 4),  # four batches of 3.5 on average
        (100, 32, 4, 32),  # four of 25, rounded up to 32
        (100, 40, 3, 40),  # three of 33.3, rounded up to 40
        (100, 60, 2, 56),  # two of 50, rounded up to 56
        (120, 40, 3, 40),  # they fit
        (5, 8, 1, 5),  # fewer images than a batch
        (8, 8, 1, 8),
        (9, 8, 2, 8),  # one image left over
        (33, 32, 2, 24),  # one image left over: two of 16.5, rounded up to 24
        (3, 2, 2, 2),
        (1, 4, 1, 1),
    ],
)
def test_batches_by_hand(images: int, most: int, steps: int, batch: int) -> None:
    order = Order(images, most, seed=0)
    assert (order.steps, order.batch) == (steps, batch)
    assert order.epoch(0).shape == (steps, batch)


@pytest.mark.parametrize(("images", "most"), CASES)
def test_every_image_is_seen_in_each_epoch_and_once_in_a_batch(images: int, most: int) -> None:
    order = Order(images, most, seed=3)
    for number in range(3):
        epoch = order.epoch(number)
        assert epoch.dtype == torch.int64 and epoch.device.type == "cpu"
        assert set(epoch.flatten().tolist()) == set(range(images))
        assert all(len(set(batch.tolist())) == order.batch for batch in epoch)


@pytest.mark.parametrize(("images", "most"), CASES)
def test_sizes_are_multiples_of_eight_where_images_and_largest_batch_allow(images: int, most: int) -> None:
    order = Order(images, most, seed=0)
    assert order.steps == math.ceil(images / most)
    assert order.batch <= min(most, images)
    enough = math.ceil(math.ceil(images / order.steps) / 8) * 8
    if enough <= min(most, images):
        assert order.batch % 8 == 0 and order.batch - 8 < images / order.steps
    else:
        assert order.batch == min(most, images)


def test_the_last_batch_is_filled_up_with_images_of_the_first() -> None:
    epoch = Order(9, 8, seed=5).epoch(2)
    shuffled = torch.randperm(9, generator=generator(5, "order", 2)).tolist()
    assert epoch.tolist() == [shuffled[:8], [shuffled[8], *shuffled[:7]]]


def _epochs(order: Order, count: int = 4) -> list[Tensor]:
    return [order.epoch(number) for number in range(count)]


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    mine, again, other = (_epochs(Order(40, 8, seed)) for seed in (1, 1, 2))
    assert all(torch.equal(one, two) for one, two in zip(mine, again, strict=True))
    assert not any(torch.equal(one, two) for one, two in zip(mine, other, strict=True))
    assert len({tuple(epoch.flatten().tolist()) for epoch in mine}) == len(mine)
