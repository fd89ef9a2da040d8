"""Progress of long work in the terminal."""

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["TerminalProgress"]

_SECONDS_BETWEEN_LINES = 10.0


class TerminalProgress:
    """Shows a bar with time left and losses; where there is no terminal, a line now and then.

    Args:
        console: Where to write.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._name, self._total, self._first = "", 0, 0
        self._began = self._last_line = 0.0

    def note(self, text: str) -> None:
        """Print one sentence."""
        self._console.print(text, highlight=False, markup=False, emoji=False)

    def start(self, name: str, total: int, done: int) -> None:
        """Begin a bar."""
        self._name, self._total, self._first = name, total, done
        self._began = self._last_line = time.monotonic()
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[losses]}"),
                console=self._console,
            )
            self._task = self._bar.add_task(name[:1].upper() + name[1:], total=total, completed=done, losses="")
            self._bar.start()

    def step(self, done: int, losses: Mapping[str, float]) -> None:
        """Move the bar, or print a line."""
        text = " ".join(f"{name} {value:.3g}" for name, value in losses.items())
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, losses=text)
        elif time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            pace = (self._last_line - self._began) / max(1, done - self._first)
            left = pace * (self._total - done)
            losses_text = f"; {text}" if text else ""
            self.note(f"{self._name}: step {done} of {self._total}, {left:.0f} s left{losses_text}")

    def finish(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None
