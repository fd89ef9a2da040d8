"""What a stage will need, in figures."""

import math
from dataclasses import dataclass
from typing import Literal

from rich.table import Table

from inlay.engine.step import Pace

__all__ = ["Place", "Rehearsal", "StageKind"]

StageKind = Literal["base", "discovery", "labelled"]
Place = Literal["on the device", "in host memory", "decoded from disk while training"]

# A training step is a pass forward and, at twice its cost, one backward.
_FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Rehearsal:
    """What a stage will need.

    Attributes:
        stage: Number of the stage, 0 for the base stage.
        kind: "base", "discovery" or "labelled".
        images: Number of images.
        shape: Channels, height and width of an image.
        classes: Number of classes that the stage learns.
        epochs: Passes over the images.
        batch: Images per step, in all processes together.
        processes: Number of processes.
        steps: Steps of the whole stage.
        steps_done: Steps that a stopped try at the stage has kept; they are not repeated.
        pace: How steps are taken.
        precision: Precision of the passes through the network.
        device: Where they are computed.
        place: Where the images live.
        peak_bytes: Most memory of a process: of its GPU, or resident memory of the process on a CPU.
        preparation_seconds: Measured time before the first step, after the images were read.
        warm_up_seconds: Measured time until steps had their pace; the time to compile and record them is in it.
        step_seconds: Measured time of one step after that.
        image_seconds: Measured time of one image through the network where no steps are taken, as it stays as it is.
    """

    stage: int
    kind: StageKind
    images: int
    shape: tuple[int, int, int]
    classes: int
    epochs: int
    batch: int
    processes: int
    steps: int
    steps_done: int
    pace: Pace
    precision: Literal["float32", "bfloat16"]
    device: str
    place: Place
    peak_bytes: int
    preparation_seconds: float
    warm_up_seconds: float
    step_seconds: float
    image_seconds: float | None = None

    @property
    def image_bytes(self) -> int:
        """Size of all images, decoded; those decoded from disk are in memory a few batches at a time."""
        return self.images * math.prod(self.shape)

    @property
    def training_seconds(self) -> float:
        """Time of the steps that are left."""
        return (self.steps - self.steps_done) * self.step_seconds

    @property
    def after_seconds(self) -> float:
        """Estimate of the time after training: the features of all images, one pass forward."""
        if self.image_seconds is not None:
            return self.images * self.image_seconds
        return self.images / self.batch * self.step_seconds * _FORWARD_SHARE

    @property
    def total_seconds(self) -> float:
        """Estimate of the time of the whole stage, after the images were read."""
        return self.preparation_seconds + self.warm_up_seconds + self.training_seconds + self.after_seconds

    def table(self) -> Table:
        """Return the figures with their names, for a terminal."""
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in {**self._stage_rows(), **self._memory_rows(), **self._time_rows()}.items():
            table.add_row(name, text)
        return table

    def _stage_rows(self) -> dict[str, str]:
        channels, height, width = self.shape
        return {
            "stage": str(self.stage),
            "kind": self.kind,
            "images": f"{self.images:,}",
            "size": f"{width}×{height}, {channels} channel(s)",
            "classes": f"{self.classes:,}",
            **self._step_rows(),
            "device": self.device,
            "images live": self.place,
        }

    def _step_rows(self) -> dict[str, str]:
        if self.image_seconds is not None:
            return {"epochs": "0: the network stays as it is"}
        each = f", {self.batch // self.processes:,} in each of {self.processes} processes" * (self.processes > 1)
        kept = f", {self.steps_done:,} of them done before" * (self.steps_done > 0)
        return {
            "epochs": f"{self.epochs:,}",
            "batch": f"{self.batch:,}{each}",
            "steps": f"{self.steps:,}{kept}",
            "pace": self.pace,
            "precision": self.precision,
        }

    def _memory_rows(self) -> dict[str, str]:
        kind = "peak memory of the process" if self.device == "cpu" else "peak memory of the GPU"
        return {kind: _size(self.peak_bytes), "memory of all images": _size(self.image_bytes)}

    def _time_rows(self) -> dict[str, str]:
        if self.image_seconds is not None:
            return {
                "preparation": _duration(self.preparation_seconds),
                "one image": f"{self.image_seconds * 1000:.3g} ms, {1 / self.image_seconds:,.0f} images/s",
                "features of all images": f"about {_duration(self.after_seconds)}",
                "in all": f"about {_duration(self.total_seconds)}",
            }
        return {
            "preparation": _duration(self.preparation_seconds),
            "compile and warm-up": _duration(self.warm_up_seconds),
            "one step": f"{self.step_seconds * 1000:.3g} ms, {self.batch / self.step_seconds:,.0f} images/s",
            "training": _duration(self.training_seconds),
            "after training": f"about {_duration(self.after_seconds)}",
            "in all": f"about {_duration(self.total_seconds)}",
        }


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1000:.3g} kB"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
