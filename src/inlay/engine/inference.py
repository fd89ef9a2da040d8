"""Batched evaluation of a network without gradients."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["features_of"]

_PIXELS_PER_BATCH = 2**21


@torch.no_grad()
def features_of(network: nn.Module, images: Tensor, prepare: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the features of all images in eval mode; the mode of every module is left as it was.

    Args:
        network: Module from images [B, C, H, W] to features [B, D].
        images: uint8 [N, C, H, W].
        prepare: Turns a uint8 batch into the network's input.

    Returns:
        Features [N, D], float32.
    """
    batch = max(1, _PIXELS_PER_BATCH // (images.shape[-1] * images.shape[-2]))
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        parts = [network(prepare(chunk)).float() for chunk in torch.split(images, batch)]
    finally:
        for module, training in modes.items():
            module.training = training
    return torch.cat(parts)
