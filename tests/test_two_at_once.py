"""Two commands on one run folder: the second is told in one sentence, and the first goes on."""

import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import inlay
from command_runs import Command, discovering, left_by, new_base_run, pictures, start, undisturbed
from inlay.engine.progress import QuietProgress
from inlay.run_folder import RunFolder
from tiny_runs import contents

SECONDS_OF_A_HANG = 60


def _is_locked(run: Path) -> bool:
    with open(run / ".lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def _halted(command: Command, run: Path) -> Iterator[None]:
    """Hold a command still while it writes to a run."""
    until = time.monotonic() + SECONDS_OF_A_HANG
    while not _is_locked(run):
        assert time.monotonic() < until and command.process.is_alive(), command.complained
        time.sleep(0.01)
    assert command.process.pid is not None
    os.kill(command.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(command.process.pid, signal.SIGCONT)


def _sentence(run: Path) -> str:
    return f"Another inlay process is writing to {run}; wait for it to end, or stop it."


def test_discovery_beside_a_discovery(tmp_path: Path) -> None:
    run = new_base_run(tmp_path / "run")
    before = contents(run)
    first = start(*discovering(run))
    with _halted(first, run):
        others = [
            start(*discovering(run)),
            start(*discovering(run, second=True)),
            start(*discovering(run), "--restart"),
        ]
        assert [other.refusal() for other in others] == [_sentence(run)] * 3
        assert contents(run) == before
        assert start("info", run).code() == 0
    assert first.code() == 0, first.complained
    assert left_by(run) == []


def test_review_beside_every_other_writer(tmp_path: Path) -> None:
    server = pytest.importorskip("inlay.review.server.session")
    run = Path(shutil.copytree(undisturbed(), tmp_path / "run"))
    before = contents(run)
    with server.open_session(run, str(pictures(second=False)), torch.device("cpu"), QuietProgress()) as session:
        others = [
            start(*discovering(run, second=True)),
            start("rollback", run, "--to", 0),
            start("review", run, "--no-browser", "--images", pictures(second=False)),
        ]
        assert [other.refusal() for other in others] == [_sentence(run)] * 3
        assert contents(run) == before
        session.decide({"decision": "rename", "id": 3, "name": "cat"}, 0)
    assert inlay.load(run, device="cpu").classes.names[3] == "cat"


def test_rollback_and_review_beside_a_writer(tmp_path: Path) -> None:
    run = Path(shutil.copytree(undisturbed(), tmp_path / "run"))
    with RunFolder.open(run).lock():
        others = [
            start("rollback", run, "--to", 0),
            start("review", run, "--no-browser", "--images", pictures(second=False)),
        ]
        assert [other.refusal() for other in others] == [_sentence(run)] * 2
    assert start("rollback", run, "--to", 0).code() == 0
    assert RunFolder.open(run).stage_count == 1


def test_a_process_that_died_holds_no_lock(tmp_path: Path) -> None:
    run = new_base_run(tmp_path / "run")
    dead = start(*discovering(run))
    with _halted(dead, run):
        dead.process.kill()
    assert dead.code() == -signal.SIGKILL
    assert not _is_locked(run)
