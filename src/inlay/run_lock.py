"""The lock of a run folder: one process writes to it at a time, and to nothing outside of it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inlay.engine.checkpoint import writing
from inlay.errors import InlayError

__all__ = ["LOCK", "held_lock"]

LOCK = ".lock"
"""Name of the file in the run folder; it is empty and stays."""

_WRITTEN_FOLDERS = ("stages", "progress", "dropped")
# Neither a link to a file elsewhere is opened, nor a pipe waited for that nobody reads.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK


@contextmanager
def held_lock(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a run until the context ends or this process does.

    Args:
        folder: The run folder.

    Raises:
        InlayError: If another process holds the lock, the folder cannot be written, or a part of it lies elsewhere.
    """
    _refuse_links(folder)
    with writing(folder):
        descriptor = os.open(folder / LOCK, _FLAGS, 0o666)
    try:
        with writing(folder):
            _take(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _refuse_links(folder: Path) -> None:
    """What is no longer needed is removed from these, wherever they are."""
    for name in _WRITTEN_FOLDERS:
        if os.path.islink(folder / name):
            raise InlayError(
                f"{folder / name} is a link to another place, to which nothing is written; put the folder itself there."
            )


def _take(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InlayError(f"Another inlay process is writing to {folder}; wait for it to end, or stop it.") from None
