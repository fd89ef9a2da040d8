"""Running a network without moving its buffers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["buffers_kept"]


@contextmanager
def buffers_kept(*models: nn.Module) -> Iterator[None]:
    """Give every buffer its values back at the end, as some networks count or average even in eval mode.

    Args:
        models: Networks that may be run meanwhile.
    """
    saved = [
        (module, name, buffer, None if buffer is None else buffer.clone())
        for model in models
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        yield
    finally:
        for module, name, buffer, values in saved:
            if buffer is not None and values is not None and not torch.equal(buffer, values):
                buffer.detach().copy_(values)
            # Some forward passes put another tensor in its place.
            module._buffers[name] = buffer
