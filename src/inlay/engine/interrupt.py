"""Ctrl-C at a moment when the state is whole."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["InterruptWatch"]


class InterruptWatch:
    """While entered, the first Ctrl-C only sets `requested`; the second one stops at once.

    Outside the main thread, where Python delivers no signals, it never sees a request.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> "InterruptWatch":
        self.requested = False
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
