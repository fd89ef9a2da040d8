"""Commands that are killed, or stopped by Ctrl-C, at any moment; `test_resume` has the moments that harm most."""

import multiprocessing
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import inlay
from command_runs import discovering, left_by, new_base_run, start, undisturbed
from inlay import decisions
from inlay.decided import decided, keep_decisions, kept_decisions
from inlay.decisions import Decision, Merge, Rename
from inlay.knowledge import Knowledge
from inlay.run_folder import RunFolder
from tiny_runs import contents

FORK = multiprocessing.get_context("fork")
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}
RUNS, STOPS = 2, 2
CPU = torch.device("cpu")


def _counted(run: Path) -> int:
    """Discover undisturbed, and return how often a function was called."""
    calls = FORK.Value("q", 0, lock=False)

    def watch() -> None:
        def count(frame: FrameType, event: str, argument: object) -> None:
            calls.value += 1

        sys.setprofile(count)

    assert start(*discovering(run), before=watch).code() == 0
    return int(calls.value)


def _stopped_after(calls: int, by_hand: bool, run: Path) -> bool:
    """Discover, but be killed or stopped by Ctrl-C after so many calls; return whether that was before the end."""

    def watch() -> None:
        left = calls

        def stop(frame: FrameType, event: str, argument: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT if by_hand else signal.SIGKILL)

        # Calls, not seconds: the same moments on every machine, however busy it is.
        sys.setprofile(stop)

    command = start(*discovering(run), before=watch)
    code = command.code()
    if code == 130:
        assert command.complained.startswith("Stopped") and command.complained.count("\n") == 1
    assert code in (0, 130 if by_hand else -signal.SIGKILL), command.complained
    return code != 0


def test_discovery_stopped_at_any_moment_ends_as_if_it_were_not(tmp_path: Path) -> None:
    calls, chance, stopped = _counted(new_base_run(tmp_path / "whole")), random.Random(0), 0
    for number in range(RUNS):
        run = new_base_run(tmp_path / str(number))
        files = contents(run)
        for _ in range(STOPS):
            stopped += _stopped_after(chance.randrange(1, calls), chance.random() < 0.5, run)
            assert len(inlay.load(run, device="cpu").stages) == 2 or contents(run) == files
        command = start(*discovering(run))
        assert command.code() == 0, command.complained
        assert left_by(run) == []
    assert stopped >= RUNS


def _decide_until(number: int, path: Path, taken: list[Decision]) -> None:
    """Keep decisions, but die right before the n-th change to the file system."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    run = RunFolder.open(path)
    knowledge = Knowledge.from_files(*run.read(), CPU)
    outcome = decisions.replay(knowledge, taken)
    sys.addaudithook(watch)
    keep_decisions(run, knowledge, taken, outcome)


def test_decision_killed_anywhere_is_taken_or_not(tmp_path: Path) -> None:
    start_run = Path(shutil.copytree(undisturbed(), tmp_path / "start"))
    run = RunFolder.open(start_run)
    knowledge = Knowledge.from_files(*run.read(), CPU)
    first: list[Decision] = [Rename(3, "cat")]
    both = [*first, Merge((4,), 3)]
    keep_decisions(run, knowledge, first, decisions.replay(knowledge, first))
    counts: list[int] = []
    code = int(-signal.SIGKILL)
    while code == -signal.SIGKILL:
        path = Path(shutil.copytree(start_run, tmp_path / str(len(counts))))
        process = FORK.Process(target=_decide_until, args=(len(counts) + 1, path, both))
        process.start()
        process.join()
        code = process.exitcode or 0
        found = RunFolder.open(path)
        kept = kept_decisions(found, knowledge)
        counts.append(len(kept))
        assert kept == both[: len(kept)]
        assert len(decided(found, knowledge).registry.active()) == 6 - len(kept)
        assert len(inlay.load(path, device="cpu").classes.active()) == 6 - len(kept)
    assert code == 0
    assert counts == sorted(counts) and counts[0] == 1 and counts[-2:] == [2, 2]
