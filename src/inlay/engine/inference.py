"""Batched evaluation of a network without gradients."""

import math
from collections.abc import Callable
from contextlib import closing

import torch
from torch import Tensor, nn

from inlay.engine.feed import Feed
from inlay.engine.host_memory import keep_freed_memory
from inlay.engine.world import World

__all__ = ["features_of", "first_images"]

_PIXELS_PER_BATCH = 2**21
# More images at a time gain a CPU little, and cost it much where memory that was freed is not kept.
_PIXELS_PER_BATCH_ON_CPU = 2**19


@torch.no_grad()
def features_of(
    network: nn.Module,
    feed: Feed,
    prepare: Callable[[Tensor], Tensor],
    report: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Return the features of all images in eval mode; the mode of every module is left as it was.

    Several processes share the images; the batches are the same whatever their number, and so are the features.

    Args:
        network: Module from images [B, C, H, W] to features [B, D].
        feed: Brings N images to the device.
        prepare: Turns a uint8 batch into the network's input.
        report: Called with the number of batches done and of all that this process computes; None tells nobody.

    Returns:
        Features [N, D] on the device, at least float32.
    """
    if feed.device.type == "cpu":
        keep_freed_memory()
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        share = _own_share(feed)
        parts: list[Tensor] = []
        with closing(feed.batches(share)) as batches:
            for images in batches:
                if report is not None:
                    report(len(parts), len(share))
                parts.append(_full(network(prepare(images))))
        # More processes than batches: the others need to know the size of the features all the same.
        own = torch.cat(parts) if parts else _full(network(prepare(first_images(feed, 1))))[:0]
    finally:
        for module, training in modes.items():
            module.training = training
    return World.current().collect(own)


def first_images(feed: Feed, count: int) -> Tensor:
    """Return the first images of a feed, at most `count`, uint8 [n, C, H, W]."""
    with closing(feed.batches([torch.arange(min(count, len(feed)))])) as batches:
        return next(iter(batches))


def _own_share(feed: Feed) -> list[Tensor]:
    """Return the batches that this process computes: one stretch of all batches."""
    world = World.current()
    _, height, width = feed.shape
    pixels = _PIXELS_PER_BATCH_ON_CPU if feed.device.type == "cpu" else _PIXELS_PER_BATCH
    batches = torch.split(torch.arange(len(feed)), max(1, pixels // (height * width)))
    each = math.ceil(len(batches) / world.size)
    return list(batches[world.rank * each : (world.rank + 1) * each])


def _full(features: Tensor) -> Tensor:
    return features.to(torch.promote_types(features.dtype, torch.float32))
