"""Requests to stop, at a moment when the state is whole."""

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

__all__ = ["InterruptWatch"]

# A launcher passes on the Ctrl-C that the terminal has sent to its processes already.
_SECONDS_OF_ONE_REQUEST = 1.0


class InterruptWatch:
    """While entered, the first Ctrl-C or SIGTERM only sets `requested`; a later Ctrl-C stops at once.

    Outside the main thread, where Python delivers no signals, it never sees a request.
    """

    def __init__(self) -> None:
        self.requested = False
        self._requested_at = 0.0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "InterruptWatch":
        self.requested = False
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self.requested and time.monotonic() - self._requested_at > _SECONDS_OF_ONE_REQUEST
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.requested:
            self._requested_at = time.monotonic()
        self.requested = True
