"""The commands of the benchmarks."""

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.table import Table

from inlay import backbones
from inlay.bench import Choice, Places, Run, measure, variations
from inlay.bench import table1 as table1_runs
from inlay.bench.datasets import BENCHMARKS, benchmark
from inlay.bench.pool import Ending, Job, run_side_by_side
from inlay.bench.recipe import settings_of
from inlay.bench.records import finished_record
from inlay.bench.variants import GROUPS
from inlay.cli.options import Changes, Device, read_changes
from inlay.cli.progress import TerminalProgress
from inlay.cli.shown import console, errors
from inlay.engine.device import find_device
from inlay.engine.world import World
from inlay.errors import InlayError

__all__ = ["app"]

app = typer.Typer(help="Measure all systems on the benchmark data sets.", no_args_is_help=True)

_PERCENT = ("old", "new", "all")


class Score(StrEnum):
    """Which scores of a run are shown."""

    protocol = "protocol"
    calibrated = "calibrated"
    released = "released"

    def of(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return them; None if this run has none."""
        found: dict[str, Any] | None = record["metrics" if self is Score.protocol else self.value]
        return found


_Root = Annotated[Path, typer.Option("--data", help="Folder that holds the data sets.", show_default=False)]
_Out = Annotated[Path, typer.Option(help="Folder of the files of results, one per run.")]
_Work = Annotated[Path, typer.Option(help="Folder of base stages, runs under way and logs.")]
_SideBySide = Annotated[int, typer.Option(min=1, help="Runs at the same time.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs, and write nothing.")]
_Commit = Annotated[str | None, typer.Option(envvar="COMMIT", help="Commit for the record; by default git's.")]


@app.command()
def table1(
    data: _Root,
    methods: Annotated[str | None, typer.Option(help="Systems, such as frost,adm; by default the table's.")] = None,
    datasets: Annotated[str, typer.Option(help="Data sets.")] = ",".join(BENCHMARKS),
    seeds: Annotated[str, typer.Option(help="Seeds of everything random but the split.")] = "0,1,2",
    split_seeds: Annotated[str | None, typer.Option(help="Shuffle the classes by each of these seeds.")] = None,
    steps: Annotated[int, typer.Option(help="Number of discovery stages.")] = 1,
    base: Annotated[str, typer.Option(help="Recipe of the base stage: reference or ours.")] = "reference",
    preset: Annotated[str | None, typer.Option(help="Preset in place of that of the one method.")] = None,
    changes: Changes = None,
    base_changes: Annotated[list[str] | None, typer.Option("--base-set", help="Change a setting base.….")] = None,
    full_length: Annotated[bool, typer.Option("--full-length", help="Train as long as the presets say.")] = False,
    backbone: Annotated[str, typer.Option(help="Network.")] = "resnet18",
    name: Annotated[str | None, typer.Option(help="Label of the runs in place of the one method.")] = None,
    score: Annotated[Score, typer.Option(help="Scores that are shown; all are written.")] = Score.protocol,
    side_by_side: _SideBySide = 1,
    out: _Out = Path("benchmarks/results/table1"),
    work: _Work = Path("runs/bench"),
    device: Device = "auto",
    commit: _Commit = None,
    dry_run: _DryRun = False,
) -> None:
    """Run the paper's Table 1; runs whose results are there are not repeated.

    Example: inlay bench table1 --data datasets --methods adm --datasets cifar100
    """
    choice = Choice(
        methods=None if methods is None else _names("--methods", methods),
        datasets=_names("--datasets", datasets),
        seeds=_numbers("--seeds", seeds),
        split_seeds=(None,) if split_seeds is None else _numbers("--split-seeds", split_seeds),
        steps=steps,
        base=base,
        changes={**read_changes(changes), **_base_changes(base_changes)},
        name=name,
        preset=preset,
        backbone=backbone,
        full_length=full_length,
    )
    _run_all(table1_runs(choice), Places(data, out, work, device, commit), side_by_side, dry_run, score)


@app.command()
def variants(
    groups: Annotated[str, typer.Argument(help=f"Tables: some of {','.join(GROUPS)}.", show_default=False)],
    data: _Root,
    datasets: Annotated[str, typer.Option(help="Data sets.")] = "cifar10,cifar100",
    seeds: Annotated[str, typer.Option(help="Seeds of everything random but the split.")] = "0",
    base: Annotated[str, typer.Option(help="Recipe of the base stage: reference or ours.")] = "reference",
    changes: Changes = None,
    backbone: Annotated[str, typer.Option(help="Network.")] = "resnet18",
    side_by_side: _SideBySide = 1,
    out: _Out = Path("benchmarks/results/table1"),
    work: _Work = Path("runs/bench"),
    device: Device = "auto",
    commit: _Commit = None,
    dry_run: _DryRun = False,
) -> None:
    """Run systems with something varied: the ladder from ADM to inlay, the parts of ADM, the gates.

    Example: inlay bench variants gates,ablations --data datasets
    """
    choice = Choice(
        methods=None,
        datasets=_names("--datasets", datasets),
        seeds=_numbers("--seeds", seeds),
        base=base,
        changes=read_changes(changes),
        backbone=backbone,
    )
    runs = variations(choice, _names("GROUPS", groups))
    _run_all(runs, Places(data, out, work, device, commit), side_by_side, dry_run, Score.protocol)


@app.command(hidden=True)
def run_one(
    run: Annotated[str, typer.Argument(help="The run as JSON.")],
    data: _Root,
    out: _Out,
    work: _Work,
    device: Device = "auto",
    commit: _Commit = None,
) -> None:
    """Do one run of a benchmark; for its own use."""
    places = Places(data, out, work, device, commit)
    measure(Run.from_json(json.loads(run)), places, TerminalProgress(console))


def _run_all(runs: Sequence[Run], places: Places, side_by_side: int, dry_run: bool, score: Score) -> None:
    """Do the runs that are not done, and show all of them.

    Raises:
        InlayError: If something is wrong that can be known before the first run.
        Exit: With code 1, if a run has failed.
    """
    _check(runs, places)
    missing = [run for run in runs if finished_record(run, places.result(run)) is None]
    for run in runs:
        if run not in missing:
            console.print(f"{run.label}: done before")
        elif dry_run:
            console.print(f"{run.label}: to do")
    if dry_run:
        return
    places.make_folders()
    files = {run.label: places.result(run) for run in runs}
    jobs = [Job(run.label, _child_command(run, places), places.log(run)) for run in missing]
    endings = run_side_by_side(jobs, side_by_side, lambda ending: _tell(ending, files[ending.job.name]))
    records = [finished_record(run, places.result(run)) for run in runs]
    scored = [(run, score.of(record)) for run, record in zip(runs, records, strict=True) if record is not None]
    console.print(_table([(run, found) for run, found in scored if found is not None]), soft_wrap=False)
    failed = [ending for ending in endings if ending.failure is not None]
    for ending in failed:
        errors.print(f"{ending.job.name} failed (see {ending.job.log}): {ending.failure}")
    if failed:
        raise typer.Exit(1)


def _check(runs: Sequence[Run], places: Places) -> None:
    if World.current().size > 1:
        raise InlayError("A benchmark starts its own processes; start it with `inlay bench`, without torchrun.")
    find_device(places.device)
    for run in runs:
        benchmark(run.dataset).find(places.data)
        settings_of(run)
    for name in {run.backbone for run in runs}:
        backbones.check_name(name)


def _child_command(run: Run, places: Places) -> list[str]:
    command = [sys.executable, "-m", "inlay", "bench", "run-one", json.dumps(run.to_json())]
    folders = {"--data": places.data, "--out": places.out, "--work": places.work, "--device": places.device}
    command += [str(word) for pair in folders.items() for word in pair]
    return command if places.commit is None else [*command, "--commit", places.commit]


def _tell(ending: Ending, file: Path) -> None:
    place = f"{ending.number} of {ending.total}"
    left = f"; about {ending.seconds_left / 60:.0f} min left" if ending.number < ending.total else ""
    if ending.failure is None:
        metrics = json.loads(file.read_text())["metrics"]
        outcome = " ".join(f"{name.capitalize()} {100 * metrics[name]:.1f}" for name in _PERCENT)
    else:
        outcome = "failed"
    console.print(f"{place}: {ending.job.name}: {outcome} in {ending.seconds:.0f} s{left}")


def _table(done: Sequence[tuple[Run, dict[str, Any]]]) -> Table:
    """Show the mean over seeds of each row, in percent."""
    table = Table("method", "data set", "seeds", box=None, pad_edge=False)
    for name in _PERCENT:
        table.add_column(name.capitalize(), justify="right")
    rows: dict[tuple[str, str], list[tuple[Run, dict[str, Any]]]] = {}
    for run, metrics in done:
        rows.setdefault((run.row, run.dataset), []).append((run, metrics))
    for (row, dataset), members in rows.items():
        means = [f"{100 * fmean(metrics[name] for _, metrics in members):.1f}" for name in _PERCENT]
        table.add_row(row, dataset, ", ".join(str(run.seed) for run, _ in members), *means)
    return table


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(names):
        raise InlayError(f"Write {option} as names with commas between them, not {text!r}.")
    return names


def _numbers(option: str, text: str) -> tuple[int, ...]:
    names = _names(option, text)
    if not all(name.isdecimal() and name.isascii() for name in names):
        raise InlayError(f"Write {option} as whole numbers with commas between them, such as 0,1,2, not {text!r}.")
    return tuple(int(name) for name in names)


def _base_changes(texts: list[str] | None) -> dict[str, str]:
    changes = read_changes(texts)
    for path in changes:
        if not path.startswith("base."):
            raise InlayError(f"{path!r} is no setting of the base stage; write --base-set base.… or --set {path}=….")
    return changes
