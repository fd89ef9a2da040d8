"""Where a benchmark reads and writes."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from inlay.engine.checkpoint import writing
from inlay.engine.step import Pace

__all__ = ["Labelled", "Places", "first_alone", "one_at_a_time"]


class Labelled(Protocol):
    """A run, which names its files."""

    @property
    def label(self) -> str:
        """Name of the files of the run, without suffix."""


@dataclass(frozen=True)
class Places:
    """Folders and device of a benchmark; nothing here changes its results, but for rounding.

    Attributes:
        data: Folder that holds the data sets.
        out: Folder of the files of results.
        work: Folder of base stages, runs and logs; it may be deleted once the results are there.
        device: "auto", "cpu" or "cuda".
        commit: Commit for the record; None asks git.
        pace: How steps are taken, in place of what the settings of a run say; "auto" leaves that. Runs side by side
            share the time of one GPU, and compiled steps take less of it.
    """

    data: Path
    out: Path
    work: Path
    device: str = "auto"
    commit: str | None = None
    pace: Literal["auto"] | Pace = "auto"

    def result(self, run: Labelled) -> Path:
        """Return the file of results of a run."""
        return self.out / f"{run.label}.json"

    def log(self, run: Labelled) -> Path:
        """Return the file that takes what a run says."""
        return self.work / "logs" / f"{run.label}.log"

    def make_folders(self) -> None:
        """Make the folders that are written to.

        Raises:
            InlayError: If one cannot be made.
        """
        for folder in (self.out, self.work / "bases", self.work / "runs", self.work / "logs"):
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Let processes that need the same thing wait for the one that makes it.

    Args:
        lock: A file for the purpose.
    """
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def first_alone(lock: Path) -> Iterator[None]:
    """Let processes that need the same thing wait for the first one, which makes it, and for no other.

    Args:
        lock: A file for the purpose; it is empty until the first one has come to the end.
    """
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        made = os.fstat(file.fileno()).st_size > 0
        if made:
            fcntl.flock(file, fcntl.LOCK_UN)
        yield
        if not made:
            file.write(b"made\n")
