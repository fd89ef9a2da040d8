"""A workshop and a receiver of news that measure the loops of a benchmark."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from benchmarks.kernels import KernelWatch

from inlay.engine.loop import Loop
from inlay.pipeline import Workshop

__all__ = ["MemoryWatch", "TimedWorkshop"]


class MemoryWatch:
    """Notes the peak memory of training on a GPU: a receiver of news that is told when a loop starts and finishes.

    Attributes:
        peak: Bytes allocated at most in the latest loop; None on a CPU.
    """

    def __init__(self) -> None:
        self.peak: int | None = None

    def note(self, text: str) -> None:
        """Ignore a sentence."""

    def start(self, name: str, total: int, done: int) -> None:
        """Begin to watch."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def step(self, done: int, losses: Mapping[str, float]) -> None:
        """Ignore the losses."""

    def finish(self) -> None:
        """Read the peak."""
        self.peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


@dataclass(frozen=True)
class TimedWorkshop(Workshop):
    """A workshop whose loops can be asked for their times, and end after some steps.

    Attributes:
        last_step: Steps to take; None goes to the end.
        kernels: Watches the kernels of the loops; None does not.
        loops: The loops that were made.
    """

    last_step: int | None = None
    kernels: KernelWatch | None = None
    loops: list[Loop] = field(default_factory=list)

    def made(self, loop: Loop) -> None:
        """Remember a loop and tell it when to end."""
        loop.last_step = self.last_step
        if self.kernels is not None:
            self.kernels.watch(loop)
        self.loops.append(loop)
