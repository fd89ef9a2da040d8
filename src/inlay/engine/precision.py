"""Mixed precision for passes through a network; losses, statistics and merges stay outside it."""

from typing import Literal

import torch
from torch import Tensor, nn

__all__ = ["Precision", "forward"]

Precision = Literal["auto", "float32", "bfloat16"]


def forward(network: nn.Module, images: Tensor, precision: Precision) -> Tensor:
    """Return the features of images, [B, D], computed in the asked precision and given in full precision.

    Args:
        network: Module from images [B, C, H, W] to features [B, D].
        images: Inputs of the network.
        precision: "auto" is bfloat16 on a CUDA device and float32 elsewhere; in float32 the convolutions of cuDNN
            still use TF32, which is torch's default.
    """
    mixed = precision == "bfloat16" or (precision == "auto" and images.is_cuda)
    with torch.autocast(images.device.type, torch.bfloat16, enabled=mixed):
        features: Tensor = network(images)
    return features.float() if features.dtype == torch.bfloat16 else features
