"""Where the time of a recorded step goes: the kernels of a loop, by what they do."""

import re
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from inlay.engine.batch import Batch
from inlay.engine.loop import Loop

__all__ = ["KernelWatch", "group_of", "milliseconds_per_step"]

# The first that matches a kernel's name is its group.
GROUPS = {
    "weight gradients of convolutions": r"wgrad",
    "input gradients of convolutions": r"dgrad",
    "convolutions forward": r"fprop|convolve|implicit_gemm|conv2d",
    "batch norm, activation, augmentation, losses (fused)": r"^triton_",
    "matrix products": r"gemm|gemv|cublas|nvjet",
    "optimiser": r"multi_tensor_apply|FusedSgd|fused_sgd",
    "copies and fills": r"memcpy|memset|copy|fill|workspace",
}
OTHER = "other kernels"
IDLE = "no kernel"
FIRST_STEP, LAST_STEP = 8, 28


def group_of(kernel: str) -> str:
    """Return what a kernel does, judged by its name."""
    return next((group for group, pattern in GROUPS.items() if re.search(pattern, kernel, re.IGNORECASE)), OTHER)


def milliseconds_per_step(kernels: Iterable[tuple[str, float]], wall: float, steps: int) -> dict[str, float]:
    """Sum the time of kernels by group, the largest first.

    Args:
        kernels: Name and microseconds of each kernel, or of all kernels of one name.
        wall: Seconds that all steps took.
        steps: Number of steps.

    Returns:
        Milliseconds per step of each group, and of no kernel at all.
    """
    sums: dict[str, float] = {}
    for name, microseconds in kernels:
        group = group_of(name)
        sums[group] = sums.get(group, 0.0) + microseconds / 1000 / steps
    idle = max(0.0, 1000 * wall / steps - sum(sums.values()))
    return {**dict(sorted(sums.items(), key=lambda item: -item[1])), IDLE: idle}


class KernelWatch:
    """Profiles some steps of a loop on a GPU, well after the step was recorded.

    Attributes:
        found: Milliseconds per step by group of kernels; empty before the last of these steps.
    """

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self._began = 0.0

    def watch(self, loop: Loop) -> None:
        """Watch the steps of a loop, which must be more than `LAST_STEP`."""
        profiler = profile(activities=[ProfilerActivity.CUDA])
        take_step = loop.take_step

        def watched(batch: Batch) -> None:
            if loop.step == FIRST_STEP:
                torch.cuda.synchronize()
                profiler.start()
                self._began = time.perf_counter()
            take_step(batch)
            if loop.step == LAST_STEP:
                torch.cuda.synchronize()
                wall = time.perf_counter() - self._began
                profiler.stop()
                self.found = milliseconds_per_step(_kernels(profiler), wall, LAST_STEP - FIRST_STEP)

        # Through vars, as a type checker refuses to see methods replaced.
        vars(loop)["take_step"] = watched


def _kernels(profiler: Any) -> list[tuple[str, float]]:
    return [(event.key, event.self_device_time_total) for event in profiler.key_averages()]
