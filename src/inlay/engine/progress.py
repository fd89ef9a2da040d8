"""What long work tells the person who waits."""

import logging
from collections.abc import Mapping
from typing import Protocol

__all__ = ["Progress", "QuietProgress"]

_log = logging.getLogger("inlay")


class Progress(Protocol):
    """Receiver of news; the command line shows them, a library user may not care."""

    def note(self, text: str) -> None:
        """Say one sentence."""

    def start(self, name: str, total: int, done: int) -> None:
        """Begin a piece of work of `total` steps of which `done` were done before."""

    def step(self, done: int, losses: Mapping[str, float]) -> None:
        """Tell how far the piece of work is, and its latest losses."""

    def finish(self) -> None:
        """End the piece of work, finished or not."""


class QuietProgress:
    """Logs notes under the logger "inlay" and shows no progress."""

    def note(self, text: str) -> None:
        """Log one sentence."""
        _log.info(text)

    def start(self, name: str, total: int, done: int) -> None:
        """Log the beginning of a piece of work."""
        _log.debug("%s: step %d of %d", name, done, total)

    def step(self, done: int, losses: Mapping[str, float]) -> None:
        """Ignore the step."""

    def finish(self) -> None:
        """Ignore the end."""
