"""Choosing where to compute."""

import os

import torch

from inlay.engine.world import World
from inlay.errors import InlayError

__all__ = ["find_device"]


def find_device(name: str) -> torch.device:
    """Return a device that exists.

    Args:
        name: "cpu", "cuda", "cuda:1", or "auto" for a CUDA device if there is one. Under torchrun "auto" and "cuda"
            give each process of a machine a device of its own.

    Raises:
        InlayError: If there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and World.current().parallel and torch.cuda.is_available():
        return _own_device(name)
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


def _own_device(name: str) -> torch.device:
    """Return the device of this process among those that share its machine."""
    world, count = World.current(), torch.cuda.device_count()
    if name != "cuda":
        raise InlayError(f"torchrun gives each process a device of its own; write --device cuda instead of {name!r}.")
    # Some launchers show each process its own device alone.
    if count == 1 and "CUDA_VISIBLE_DEVICES" in os.environ:
        return torch.device("cuda:0")
    if world.local_rank >= count:
        raise InlayError(f"This machine has {count} CUDA device(s); start at most that many processes on it.")
    return torch.device(f"cuda:{world.local_rank}")
