"""Choosing where to compute."""

import torch

from inlay.engine.world import World
from inlay.errors import InlayError

__all__ = ["find_device"]


def find_device(name: str) -> torch.device:
    """Return a device that exists.

    Args:
        name: "cpu", "cuda", "cuda:1", or "auto" for a CUDA device if there is one. With several processes "auto" and
            "cuda" give each process of a machine a device of its own.

    Raises:
        InlayError: If there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    world = World.current()
    if name == "cuda" and world.parallel:
        name = f"cuda:{world.local_rank}"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InlayError(f"There is no device {name!r}; write auto, cpu or cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InlayError("No CUDA device is available; write --device cpu.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InlayError(f"There is no device {name!r}; the last one is cuda:{torch.cuda.device_count() - 1}.")
    return device
