"""What long work tells the person who waits."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Progress", "QuietProgress", "counting"]

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


@contextmanager
def counting(progress: Progress, name: str) -> Iterator[Callable[[int, int], None]]:
    """Show work that tells how many of its parts are done; work done at its first word is not shown at all.

    Args:
        progress: Receiver of news.
        name: What the work is called.

    Yields:
        The function to call with the number of parts done and the number of all parts.
    """
    started = False

    def report(done: int, total: int) -> None:
        nonlocal started
        if not started and done < total:
            progress.start(name, total, 0)
            started = True
        if started:
            progress.step(done, {})

    try:
        yield report
    finally:
        if started:
            progress.finish()
