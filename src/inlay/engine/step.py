"""One optimiser step: eager, compiled, or recorded once and replayed."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Literal

import torch
from torch import Tensor

from inlay.engine.batch import Batch
from inlay.engine.work import Work
from inlay.engine.world import World
from inlay.errors import InlayError

__all__ = ["Pace", "Stepper", "chosen_pace", "quiet_compiler"]

Pace = Literal["eager", "graph", "compile"]

# Compiling takes half a minute, which neither fewer steps nor fewer images win back: large batches save more a step.
_STEPS_WORTH_COMPILING = 5000
_IMAGES_WORTH_COMPILING = 1_500_000
_STEPS_BEFORE_RECORDING = 3


def chosen_pace(wished: Literal["auto"] | Pace, device: torch.device, steps: int, images: int, world: World) -> Pace:
    """Return how steps are taken.

    Args:
        wished: "eager": kernel after kernel; "graph": the whole step recorded as a CUDA graph; "compile": compiled,
            and on a GPU recorded too; "auto": eager on the CPU and with several processes, otherwise recorded, and
            compiled from 5,000 steps or 1.5 million images.
        device: Where the steps are computed.
        steps: Number of steps.
        images: Number of images in all of them, each counted as often as it is taken.
        world: The processes.

    Raises:
        InlayError: If the device or the processes do not allow what is wished.
    """
    can_record = device.type == "cuda" and not world.parallel
    if wished == "graph" and not can_record:
        raise InlayError("Steps are recorded by one process on a CUDA device only; write pace=auto or pace=eager.")
    if wished == "compile" and world.parallel:
        raise InlayError("Steps are compiled for one process only; write pace=auto or pace=eager.")
    if wished != "auto":
        return wished
    if not can_record:
        return "eager"
    worth_compiling = steps >= _STEPS_WORTH_COMPILING or images >= _IMAGES_WORTH_COMPILING
    return "compile" if worth_compiling else "graph"


class Stepper:
    """Takes optimiser steps down the weighted sum of the losses of some work.

    A recorded step is one CUDA graph of draws, augmentation, passes, losses, gradients and update. The steps before
    the recording are ordinary ones, so that recording changes nothing but the time.

    Args:
        work: What is trained.
        optimizer: Optimiser of its parameters; with a recorded step its learning rate becomes a tensor.
        pace: How steps are taken.
        device: Where.
        world: The processes.
        settings_name: Where the settings stand among all settings, for advice.
        gradient_limit: Every entry of a gradient is cut off at plus and minus this; 0 cuts nothing.

    Attributes:
        values: Weighted losses of the latest step, one for each name, on the device.
        names: Names of the losses.
        ready_at: Moment at which the step was compiled and recorded; None before.
        steps_when_ready: Steps taken since then.
    """

    def __init__(
        self,
        work: Work,
        optimizer: torch.optim.Optimizer,
        pace: Pace,
        device: torch.device,
        world: World,
        settings_name: str = "training",
        gradient_limit: float = 0.0,
    ) -> None:
        self.names = tuple(work.weights(0.0))
        self.ready_at: float | None = None
        self.steps_when_ready = 0
        self._optimizer = optimizer
        self._world = world
        self._pace = pace
        self._settings_name = settings_name
        self._gradient_limit = gradient_limit
        self._records = device.type == "cuda" and pace != "eager" and not world.parallel
        self._work = world.wrap(work)
        # Unbound, so that no circle of references keeps the memory of a recording.
        self._losses: Callable[[Stepper, Batch], Tensor] = Stepper._weighted
        if pace == "compile":
            self._losses = torch.compile(_fresh(Stepper._weighted), dynamic=False)
        dtype = next(parameter for group in optimizer.param_groups for parameter in group["params"]).dtype
        self._weights = torch.zeros(len(self.names), dtype=dtype, device=device)
        self.values = torch.zeros_like(self._weights)
        self._set_weights: tuple[float, ...] = ()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._static: Batch | None = None
        self._side = _recording_stream(device) if self._records else None
        self._steps_taken = 0
        if self._records:
            for group in optimizer.param_groups:
                group["lr"] = torch.tensor(float(group["lr"]), device=device)

    def __call__(self, batch: Batch, weights: Mapping[str, float], rate: float) -> None:
        """Take one step.

        Args:
            batch: Inputs of the work.
            weights: Weight of each loss.
            rate: Learning rate.
        """
        self._set(weights, rate)
        if self.ready_at is None:
            with self._failures_in_words(), quiet_compiler():
                self._advance(batch)
        else:
            self._advance(batch)
        self._steps_taken += 1
        if self.ready_at is not None:
            self.steps_when_ready += 1
        elif not self._records:
            self._be_ready()

    def close(self) -> None:
        """Let go of the recording and its memory, gradients included."""
        self._graph = self._static = None
        self._optimizer.zero_grad(set_to_none=True)

    def _advance(self, batch: Batch) -> None:
        if self._graph is None and self._records and self._steps_taken >= _STEPS_BEFORE_RECORDING:
            self._record(batch)
        if self._graph is not None and self._static is not None:
            self._static.fill(batch)
            self._graph.replay()
        elif self._side is not None:
            self._step_aside(batch)
        else:
            self._step(batch)

    @contextmanager
    def _failures_in_words(self) -> Iterator[None]:
        """Say what helps where a network, or the machine, does not allow compiling or recording."""
        if self._pace == "eager":
            yield
            return
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise InlayError(
                f"The step of this network cannot be run with pace={self._pace} ({reason}); write "
                f"--set {self._settings_name}.pace=eager."
            ) from error

    def _set(self, weights: Mapping[str, float], rate: float) -> None:
        values = tuple(weights[name] for name in self.names)
        if values != self._set_weights:
            self._set_weights = values
            for place, value in enumerate(values):
                self._weights[place].fill_(value)
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _step(self, batch: Batch) -> None:
        with self._world.global_statistics():
            weighted = self._losses(self, batch)
        self._optimizer.zero_grad(set_to_none=True)
        weighted.sum().backward()  # type: ignore[no-untyped-call]
        if self._gradient_limit:
            parameters = (parameter for group in self._optimizer.param_groups for parameter in group["params"])
            torch.nn.utils.clip_grad_value_(parameters, self._gradient_limit)
        self._optimizer.step()
        self.values.copy_(weighted.detach())

    def _weighted(self, batch: Batch) -> Tensor:
        losses = self._work(batch)
        return torch.stack([losses[name].to(self._weights.dtype) for name in self.names]) * self._weights

    def _step_aside(self, batch: Batch) -> None:
        """Take a step on the stream of the recording, as that is where gradients must first be made."""
        assert self._side is not None
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            self._step(batch)
        torch.cuda.current_stream().wait_stream(self._side)

    def _record(self, batch: Batch) -> None:
        torch.cuda.synchronize()
        self._static = batch.copied()
        self._optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._side):
            self._step(self._static)
        self._graph = graph
        self._be_ready()

    def _be_ready(self) -> None:
        if self.values.is_cuda:
            torch.cuda.synchronize()
        self.ready_at = time.monotonic()


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Keep back what torch's compiler says of its choices, on which nobody who trains can act."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\._inductor\.")
        yield


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the one stream on which steps are recorded, as matrix products keep their workspace on every stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _fresh(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a copy of a function, as torch gives up on a function once it was compiled for eight loops."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
