"""Passes of images through a network: precision, and the rows of other processes."""

from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from inlay.engine.world import World

__all__ = ["Precision", "chosen_precision", "pass_views"]

Precision = Literal["auto", "float32", "bfloat16"]

# Below this side the conversions cost the CPU more than the products save.
_SMALLEST_SIDE_FOR_BFLOAT16 = 28


def pass_views(network: nn.Module, views: tuple[Tensor, ...], precision: Precision) -> tuple[Tensor, ...]:
    """Return the features of several views, computed in one pass.

    Args:
        network: Module from images [N, C, H, W] to features [N, D].
        views: Network inputs of the rows of this process, each [r, C, H, W].
        precision: "auto" is bfloat16 where it pays: on a GPU, and for images of 28 pixels and up on a CPU that
            multiplies bfloat16 in hardware. In "float32" the convolutions of cuDNN still use TF32, which is torch's
            default.

    Returns:
        The features of each view for the rows of all processes, each [B, D], in full precision.
    """
    inputs = torch.cat(views) if len(views) > 1 else views[0]
    with chosen_precision(inputs, precision):
        features: Tensor = network(inputs)
    if features.dtype == torch.bfloat16:
        features = features.float()
    everything = World.current().gather(features.view(len(views), -1, *features.shape[1:]), dim=1)
    return everything.unbind(0)


def chosen_precision(inputs: Tensor, precision: Precision) -> torch.autocast:
    """Return the context in which a network takes inputs [N, C, H, W] with a precision; see `pass_views`."""
    mixed = inputs.dtype == torch.float32 and (precision == "bfloat16" or (precision == "auto" and _pays(inputs)))
    return torch.autocast(inputs.device.type, torch.bfloat16, enabled=mixed)


def _pays(inputs: Tensor) -> bool:
    return inputs.is_cuda or (min(inputs.shape[2:]) >= _SMALLEST_SIDE_FOR_BFLOAT16 and _cpu_multiplies_bfloat16())


@cache
def _cpu_multiplies_bfloat16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
