"""What the commands of the benchmarks share: their options, and doing the runs that are missing side by side."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

import typer
from rich.table import Table

from inlay.bench.datasets import benchmark
from inlay.bench.places import Places
from inlay.bench.pool import Ending, Job, run_side_by_side
from inlay.cli.shown import console, errors
from inlay.engine.device import find_device
from inlay.engine.step import chosen_pace
from inlay.engine.world import World
from inlay.errors import InlayError

__all__ = [
    "Bases",
    "Bench",
    "Commit",
    "DryRun",
    "Minutes",
    "Out",
    "Paced",
    "Root",
    "SideBySide",
    "StepPace",
    "Work",
    "read_names",
    "read_numbers",
    "run_all",
]


class StepPace(StrEnum):
    """Ways to take steps."""

    auto = "auto"
    eager = "eager"
    graph = "graph"
    compile = "compile"


Root = Annotated[Path, typer.Option("--data", help="Folder that holds the data sets.", show_default=False)]
Out = Annotated[Path, typer.Option(help="Folder of the files of results, one per run.")]
Work = Annotated[Path, typer.Option(help="Folder of base stages, runs under way and logs.")]
SideBySide = Annotated[int, typer.Option(min=1, help="Runs at the same time.")]
Bases = Annotated[
    int | None, typer.Option(min=1, help="Base stages at the same time at most, so that the first runs end sooner.")
]
Minutes = Annotated[
    float | None, typer.Option(min=0.0, help="Stop after so many minutes; repeat the command to go on.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs, and write nothing.")]
Paced = Annotated[
    StepPace, typer.Option("--pace", help="How steps are taken; compiled ones take least of a GPU that runs share.")
]
Commit = Annotated[str | None, typer.Option(envvar="COMMIT", help="Commit for the record; by default git's.")]


class _Run(Protocol):
    @property
    def label(self) -> str: ...

    @property
    def dataset(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


R = TypeVar("R", bound=_Run)


@dataclass(frozen=True)
class Bench(Generic[R]):
    """What a benchmark does with its runs.

    Attributes:
        child: Name of the command that does one run, given as JSON.
        finished: Returns the record of a run that was finished earlier, given its file of results, or None.
        outcome: Says in a few words what came out, given a record.
        table: Shows runs with their records.
        shares: Names what a run makes first, unless another of that name has made it; its file of results is written
            as soon as that is there. None if runs share nothing.
    """

    child: str
    finished: Callable[[R, Path], dict[str, Any] | None]
    outcome: Callable[[dict[str, Any]], str]
    table: Callable[[list[tuple[R, dict[str, Any]]]], Table]
    shares: Callable[[R], str] | None = None


def run_all(
    bench: Bench[R],
    runs: Sequence[R],
    places: Places,
    side_by_side: int,
    dry_run: bool,
    minutes: float | None = None,
    bases: int | None = None,
) -> None:
    """Do the runs that are not done, and show all of them.

    Args:
        bench: What is done with them.
        runs: All runs, with nothing wrong in themselves.
        places: Where to read and write.
        side_by_side: Runs at the same time.
        dry_run: Only list them.
        minutes: Time after which it stops; None has no end.
        bases: Most runs that make at the same time what they share; None has no limit.

    Raises:
        InlayError: If something is wrong that can be known before the first run.
        Exit: With code 1, if a run has failed.
    """
    _check(runs, places)
    missing = [run for run in runs if bench.finished(run, places.result(run)) is None]
    for run in runs:
        if run not in missing:
            console.print(f"{run.label}: done before")
        elif dry_run:
            console.print(f"{run.label}: to do")
    if dry_run:
        return
    places.make_folders()
    files = {run.label: places.result(run) for run in runs}
    jobs = [_job(bench, run, places) for run in missing]
    seconds = None if minutes is None else 60 * minutes
    endings = run_side_by_side(
        jobs, side_by_side, lambda ending: _tell(bench, ending, files[ending.job.name]), seconds, bases
    )
    records = [(run, bench.finished(run, places.result(run))) for run in runs]
    console.print(bench.table([(run, record) for run, record in records if record is not None]), soft_wrap=False)
    if len(endings) < len(jobs):
        console.print(f"Stopped with {len(endings)} of {len(jobs)} runs ended; repeat the command to go on.")
    failed = [ending for ending in endings if ending.failure is not None]
    for ending in failed:
        errors.print(f"{ending.job.name} failed (see {ending.job.log}): {ending.failure}")
    if failed:
        raise typer.Exit(1)


def _check(runs: Sequence[R], places: Places) -> None:
    if World.current().size > 1:
        raise InlayError("A benchmark starts its own processes; start it with `inlay bench`, without torchrun.")
    # Refuses what the device does not allow, before the first run does.
    chosen_pace(places.pace, find_device(places.device), 1, 1, World.current())
    for name in dict.fromkeys(run.dataset for run in runs):
        benchmark(name).find(places.data)


def _job(bench: Bench[R], run: R, places: Places) -> Job:
    shares = None if bench.shares is None else bench.shares(run)
    return Job(run.label, _child_command(bench.child, run, places), places.log(run), shares, places.result(run))


def _child_command(child: str, run: _Run, places: Places) -> list[str]:
    command = [sys.executable, "-m", "inlay", "bench", child, json.dumps(run.to_json())]
    folders = {"--data": places.data, "--out": places.out, "--work": places.work, "--device": places.device}
    command += [str(word) for pair in folders.items() for word in pair]
    command += [] if places.pace == "auto" else ["--pace", places.pace]
    return command if places.commit is None else [*command, "--commit", places.commit]


def _tell(bench: Bench[R], ending: Ending, file: Path) -> None:
    place = f"{ending.number} of {ending.total}"
    left = f"; about {ending.seconds_left / 60:.0f} min left" if ending.number < ending.total else ""
    outcome = bench.outcome(json.loads(file.read_text())) if ending.failure is None else "failed"
    console.print(f"{place}: {ending.job.name}: {outcome} in {ending.seconds:.0f} s{left}")


def read_names(option: str, text: str) -> tuple[str, ...]:
    """Return names that have commas between them.

    Raises:
        InlayError: If one is empty.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(names):
        raise InlayError(f"Write {option} as names with commas between them, not {text!r}.")
    return names


def read_numbers(option: str, text: str) -> tuple[int, ...]:
    """Return whole numbers that have commas between them.

    Raises:
        InlayError: If one is no number.
    """
    names = read_names(option, text)
    if not all(name.isdecimal() and name.isascii() for name in names):
        raise InlayError(f"Write {option} as whole numbers with commas between them, such as 0,1,2, not {text!r}.")
    return tuple(int(name) for name in names)
