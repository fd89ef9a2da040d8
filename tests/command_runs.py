"""Real commands in processes of their own, on small runs that tests share."""

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path

import torch
from PIL import Image

from inlay.cli import app, main
from inlay.errors import InlayError
from inlay.run_folder import RunFolder
from tiny_digits import digits
from tiny_runs import FIRST, SECOND, base_learner, contents

__all__ = ["CLASSES", "Command", "discovering", "left_by", "new_base_run", "pictures", "start", "undisturbed"]

CLASSES = len(FIRST)
_FORK = multiprocessing.get_context("fork")
_SECONDS_OF_A_HANG = 120.0


@dataclass(frozen=True)
class Command:
    """A command that was started."""

    process: ForkProcess
    folder: Path

    @property
    def said(self) -> str:
        """What it wrote to stdout."""
        return (self.folder / "1").read_text()

    @property
    def complained(self) -> str:
        """What it wrote to stderr."""
        return (self.folder / "2").read_text()

    def code(self) -> int:
        """Wait for its end and return its exit code."""
        self.process.join(_SECONDS_OF_A_HANG)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            raise AssertionError(f"the command hangs: {self.said}{self.complained}")
        return code

    def refusal(self) -> str:
        """Wait for it to fail with one sentence, and return that."""
        assert self.code() == 2, self.said + self.complained
        text = self.complained
        assert text.startswith("Error: ") and text.endswith(".\n") and text.count("\n") == 1, text
        return text.removeprefix("Error: ").rstrip("\n")


def start(*arguments: object, before: Callable[[], None] | None = None) -> Command:
    """Start a command.

    Args:
        arguments: Those of `inlay`.
        before: Called in its process first.
    """
    _import_the_rest()
    folder = Path(tempfile.mkdtemp(dir=_scratch()))
    for name in ("1", "2"):
        (folder / name).touch()
    # Forked, as importing takes longer than most commands here.
    process = _FORK.Process(target=_live, args=([str(argument) for argument in arguments], folder, before), daemon=True)
    process.start()
    return Command(process, folder)


def _live(arguments: Sequence[str], folder: Path, before: Callable[[], None] | None) -> None:
    for descriptor in (1, 2):
        os.dup2(os.open(folder / str(descriptor), os.O_WRONLY), descriptor)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["inlay", *arguments]
    if before is not None:
        before()
    try:
        main()
    finally:
        # What comes now is no part of the command.
        sys.setprofile(None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@functools.cache
def _import_the_rest() -> None:
    """Let the command line import here, once, what it imports with its first command."""
    with contextlib.suppress(InlayError):
        app(["score", str(_scratch() / "missing.csv")])
    Image.init()


@functools.cache
def _scratch() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="commands")
    _kept.append(folder)
    return Path(folder.name)


_kept: list[object] = []
"""Temporary folders, which are removed with this list."""


@functools.cache
def pictures(second: bool) -> Path:
    """A folder of unlabelled images of two new classes."""
    folder = _scratch() / f"pictures-{second}"
    folder.mkdir()
    for number, image in enumerate(digits(SECOND if second else FIRST, last=30).images):
        Image.fromarray(image[0].numpy()).save(folder / f"{number:03d}.png")
    return folder


def discovering(run: Path, second: bool = False) -> tuple[object, ...]:
    """The arguments of a discovery in such a run."""
    return ("discover", run, pictures(second=second), "--classes", CLASSES, "--all-new", "--device", "cpu")


def new_base_run(path: Path) -> Path:
    """Write a run of base classes."""
    return base_learner().save(path)


@functools.cache
def undisturbed() -> Path:
    """A run after a discovery that nothing has disturbed; only to be copied."""
    run = new_base_run(_scratch() / "undisturbed" / "run")
    command = start(*discovering(run))
    assert command.code() == 0, command.complained
    return run


def left_by(run: Path) -> list[str]:
    """Names of what is in a run that is not, or not the same, in the undisturbed one."""
    wanted, found = RunFolder.open(undisturbed()), RunFolder.open(run)
    assert found.stage_count == wanted.stage_count
    tensors, other = wanted.read()[0], found.read()[0]
    different = [name for name in tensors if not torch.equal(tensors[name], other[name])]
    files = contents(undisturbed()).keys() ^ contents(run).keys()
    return different + sorted(files) + [entry.name for entry in (run / "progress").iterdir()]
