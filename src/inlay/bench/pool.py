"""Several commands side by side, each in a process of its own."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inlay.engine.interrupt import InterruptWatch
from inlay.errors import Interrupted

__all__ = ["Ending", "Job", "run_side_by_side"]

# Threads of a process, and processes by which it compiles.
_SHARES = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
_SECONDS_BETWEEN_LOOKS = 0.1
# A child stops after the step it is in. One that compiles its first step may take far longer, and is not waited for.
_SECONDS_TO_STOP = 30.0


@dataclass(frozen=True)
class Job:
    """A command to run.

    Attributes:
        name: What it is called.
        command: The command and its arguments.
        log: File that takes its output; what was in it is lost.
        shares: Name of what it makes first, unless another job has; one that shares it would wait for that job.
        made: File that it writes as soon as what it shares is there.
    """

    name: str
    command: Sequence[str]
    log: Path
    shares: str | None = None
    made: Path | None = None


@dataclass(frozen=True)
class Ending:
    """How a job ended.

    Attributes:
        job: The job.
        failure: The last line it said, if it failed; None if it did not.
        seconds: Time that it took.
        number: How many jobs have ended, this one included.
        total: Number of all jobs.
        seconds_left: Time that the others will take, if they are like those that have ended.
    """

    job: Job
    failure: str | None
    seconds: float
    number: int
    total: int
    seconds_left: float


class _Child:
    def __init__(self, job: Job, threads: int | None) -> None:
        self.job, self.began, self._date = job, time.monotonic(), time.time_ns()
        environment = dict(os.environ)
        if threads is not None:
            for variable in _SHARES:
                environment.setdefault(variable, str(threads))
        with job.log.open("wb") as log:
            self.process = subprocess.Popen(
                job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    @property
    def is_making(self) -> bool:
        """Whether other jobs would wait for this one, as what they share is not there yet."""
        made = self.job.made
        return self.job.shares is not None and not (made and made.exists() and made.stat().st_mtime_ns >= self._date)

    def failure(self) -> str | None:
        if self.process.returncode == 0:
            return None
        lines = self.job.log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), None)
        return last.removeprefix("Error: ") if last else f"It said nothing; its exit code is {self.process.returncode}."


def run_side_by_side(
    jobs: Sequence[Job],
    count: int,
    report: Callable[[Ending], None],
    seconds: float | None = None,
    makers: int | None = None,
) -> list[Ending]:
    """Run jobs, some at a time; one that fails does not stop the others.

    Processes of jobs side by side share the cores evenly, unless OMP_NUM_THREADS and, for compiling,
    TORCHINDUCTOR_COMPILE_THREADS say otherwise.

    Args:
        jobs: The jobs, in the order in which they begin, but that those come later that would wait for one under way.
        count: How many run at the same time.
        report: Called whenever a job has ended.
        seconds: Time after which the jobs under way are stopped, as by Ctrl-C, and no other begins; None has no end.
            One that has not stopped half a minute later is killed.
        makers: How many make at the same time what they share with others; None has no limit. With one, places stay
            empty rather than that more do, or that a job waits for another.

    Returns:
        The endings, in the order in which the jobs ended; jobs that were stopped have none.

    Raises:
        Interrupted: If Ctrl-C was pressed; the jobs under way were asked to stop, and have ended.
    """
    waiting, running, endings, made = list(jobs), list[_Child](), list[Ending](), set[str | None]()
    end = float("inf") if seconds is None else time.monotonic() + seconds
    threads = None if count == 1 else max(1, (os.cpu_count() or 1) // count)
    with InterruptWatch() as watch:
        try:
            while (waiting or running) and not watch.requested and time.monotonic() < end:
                made |= {child.job.shares for child in running if not child.is_making}
                while len(running) < count and (job := _taken(waiting, running, made, makers)) is not None:
                    running.append(_Child(job, threads))
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                # One that Ctrl-C has reached as well has not failed; it was stopped.
                if not watch.requested:
                    for child in [child for child in running if child.process.poll() is not None]:
                        running.remove(child)
                        endings.append(_ending(child, endings, len(jobs), count))
                        report(endings[-1])
        finally:
            _stop(running)
    if watch.requested:
        raise Interrupted(f"Stopped with {len(endings)} of {len(jobs)} runs ended; repeat the command to go on.")
    return endings


def _taken(
    waiting: list[Job], running: Sequence[_Child], made: Collection[str | None], makers: int | None
) -> Job | None:
    """Take the next job out of those that wait, or none if all of them have to."""
    making = {child.job.shares for child in running if child.is_making}
    full = makers is not None and len(making) >= makers
    for index, job in enumerate(waiting):
        begins = job.shares is not None and job.shares not in made
        if job.shares not in making and not (begins and full):
            return waiting.pop(index)
    return waiting.pop(0) if waiting and makers is None else None


def _ending(child: _Child, earlier: Sequence[Ending], total: int, count: int) -> Ending:
    seconds = time.monotonic() - child.began
    number = len(earlier) + 1
    mean = (seconds + sum(ending.seconds for ending in earlier)) / number
    left = mean * (total - number) / count
    return Ending(child.job, child.failure(), seconds, number, total, left)


def _stop(children: Sequence[_Child]) -> None:
    """Ask children to stop, as Ctrl-C would, and wait until they have; kill those that do not.

    Whatever moment they are killed at, their files are whole and the next start goes on from the latest.
    """
    for child in children:
        with suppress(ProcessLookupError):
            child.process.send_signal(signal.SIGINT)
    end = time.monotonic() + _SECONDS_TO_STOP
    for child in children:
        try:
            child.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
