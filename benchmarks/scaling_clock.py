"""Times the parts of a discovery stage."""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from unittest import mock

import torch

from inlay.discovery.statistics import ClassStatistics
from inlay.engine.loop import Loop

__all__ = ["TIMED", "Clock"]

# Which functions are timed as which part; none of them calls another. Modules are looked up by name, as the package
# `inlay.methods` has functions with the names of its modules.
TIMED: dict[str, tuple[tuple[object, str], ...]] = {
    "training": ((Loop, "run"),),
    "features": ((import_module("inlay.methods.task"), "features_of"),),
    "k-means": ((import_module("inlay.methods.method"), "kmeans"),),
    "neighbours": ((import_module("inlay.methods.model"), "nearest_neighbours"),),
    "branches": (
        (import_module("inlay.methods.stage"), "open_trunk"),
        (import_module("inlay.methods.stage"), "close_trunk"),
    ),
    "statistics": (
        (import_module("inlay.methods.classifier"), "class_statistics"),
        (ClassStatistics, "mapped"),
        (ClassStatistics, "prepare_sampling"),
        (ClassStatistics, "sample"),
    ),
    "refit": ((import_module("inlay.methods.classifier"), "refit_linear"),),
}


@dataclass
class Clock:
    """Times the parts of stages.

    Attributes:
        device: Where the stages are computed.
        parts: Seconds of each part so far.
    """

    device: torch.device
    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time the parts of the stages in a block."""
        with ExitStack() as stack:
            for part, functions in TIMED.items():
                self.parts[part] = 0.0
                for owner, name in functions:
                    stack.enter_context(mock.patch.object(owner, name, self._timed(part, getattr(owner, name))))
            yield

    def now(self) -> float:
        """Return the time once the device has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            began = self.now()
            try:
                return function(*arguments, **named)
            finally:
                self.parts[part] += self.now() - began

        return timed
