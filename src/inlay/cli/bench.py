"""The commands of the benchmarks."""

import json
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
from inlay.bench.campaign import PARTS, campaign
from inlay.bench.datasets import BENCHMARKS, benchmark
from inlay.bench.recipe import base_name, settings_of
from inlay.bench.records import finished_record
from inlay.bench.variants import GROUPS
from inlay.cli.bench_runs import (
    Bases,
    Bench,
    Commit,
    DryRun,
    Minutes,
    Out,
    Paced,
    Root,
    SideBySide,
    StepPace,
    Work,
    read_names,
    read_numbers,
    run_all,
)
from inlay.cli.bench_table2 import run_one_of_table2, table2
from inlay.cli.options import Changes, Device, read_changes
from inlay.cli.progress import TerminalProgress
from inlay.cli.shown import console
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


@app.command()
def table1(
    data: Root,
    methods: Annotated[str | None, typer.Option(help="Systems, such as frost,adm; by default the table's.")] = None,
    datasets: Annotated[str, typer.Option(help="Data sets.")] = ",".join(BENCHMARKS),
    seeds: Annotated[str, typer.Option(help="Seeds of everything random but the split.")] = "0,1,2",
    split_seeds: Annotated[str | None, typer.Option(help="Shuffle the classes by each of these seeds.")] = None,
    steps: Annotated[int, typer.Option(help="Number of discovery stages.")] = 1,
    base: Annotated[str, typer.Option(help="Recipe of the base stage: reference or ours.")] = "reference",
    preset: Annotated[str | None, typer.Option(help="Preset in place of that of the one method.")] = None,
    changes: Changes = None,
    base_changes: Annotated[list[str] | None, typer.Option("--base-set", help="Change a setting base.….")] = None,
    full_length: Annotated[bool, typer.Option("--full-length", help="Train as long as published.")] = False,
    backbone: Annotated[str, typer.Option(help="Network.")] = "resnet18",
    name: Annotated[str | None, typer.Option(help="Label of the runs in place of the one method.")] = None,
    score: Annotated[Score, typer.Option(help="Scores that are shown; all are written.")] = Score.protocol,
    side_by_side: SideBySide = 1,
    bases: Bases = None,
    out: Out = Path("benchmarks/results/table1"),
    work: Work = Path("runs/bench"),
    device: Device = "auto",
    pace: Paced = StepPace.auto,
    commit: Commit = None,
    minutes: Minutes = None,
    dry_run: DryRun = False,
) -> None:
    """Run the paper's Table 1; runs whose results are there are not repeated.

    Example: inlay bench table1 --data datasets --methods adm --datasets cifar100
    """
    choice = Choice(
        methods=None if methods is None else read_names("--methods", methods),
        datasets=read_names("--datasets", datasets),
        seeds=read_numbers("--seeds", seeds),
        split_seeds=_split_seeds(split_seeds),
        steps=steps,
        base=base,
        changes={**read_changes(changes), **_base_changes(base_changes)},
        name=name,
        preset=preset,
        backbone=backbone,
        full_length=full_length,
    )
    places = Places(data, out, work, device, commit, pace.value)
    _run_all(table1_runs(choice), places, side_by_side, bases, dry_run, minutes, score)


@app.command()
def variants(
    groups: Annotated[str, typer.Argument(help=f"Tables: some of {','.join(GROUPS)}.", show_default=False)],
    data: Root,
    datasets: Annotated[str, typer.Option(help="Data sets.")] = "cifar10,cifar100",
    seeds: Annotated[str, typer.Option(help="Seeds of everything random but the split.")] = "0",
    split_seeds: Annotated[str | None, typer.Option(help="Shuffle the classes by each of these seeds.")] = None,
    base: Annotated[str, typer.Option(help="Recipe of the base stage: reference or ours.")] = "reference",
    changes: Changes = None,
    backbone: Annotated[str, typer.Option(help="Network.")] = "resnet18",
    side_by_side: SideBySide = 1,
    bases: Bases = None,
    out: Out = Path("benchmarks/results/table1"),
    work: Work = Path("runs/bench"),
    device: Device = "auto",
    pace: Paced = StepPace.auto,
    commit: Commit = None,
    minutes: Minutes = None,
    dry_run: DryRun = False,
) -> None:
    """Run systems with something varied: the ladder from ADM to inlay, the parts of ADM, the gates, diagnoses.

    Example: inlay bench variants gates,ablations --data datasets
    """
    choice = Choice(
        methods=None,
        datasets=read_names("--datasets", datasets),
        seeds=read_numbers("--seeds", seeds),
        split_seeds=_split_seeds(split_seeds),
        base=base,
        changes=read_changes(changes),
        backbone=backbone,
    )
    runs = variations(choice, read_names("GROUPS", groups))
    _run_all(runs, Places(data, out, work, device, commit, pace.value), side_by_side, bases, dry_run, minutes)


@app.command("all")
def everything(
    data: Root,
    parts: Annotated[str | None, typer.Option(help=f"Some of {','.join(PARTS)}; by default all.")] = None,
    datasets: Annotated[str, typer.Option(help="Data sets.")] = ",".join(BENCHMARKS),
    side_by_side: SideBySide = 1,
    bases: Bases = None,
    out: Out = Path("benchmarks/results/table1"),
    work: Work = Path("runs/bench"),
    device: Device = "auto",
    pace: Paced = StepPace.auto,
    commit: Commit = None,
    minutes: Minutes = None,
    dry_run: DryRun = False,
) -> None:
    """Do every run of the page of results that is missing, those first that say most.

    Example: inlay bench all --data datasets --side-by-side 8 --minutes 60
    """
    chosen = read_names("--datasets", datasets)
    for name in chosen:
        benchmark(name)
    runs = campaign(None if parts is None else read_names("--parts", parts), chosen)
    _run_all(runs, Places(data, out, work, device, commit, pace.value), side_by_side, bases, dry_run, minutes)


app.command()(table2)
app.command(hidden=True)(run_one_of_table2)


@app.command(hidden=True)
def run_one(
    run: Annotated[str, typer.Argument(help="The run as JSON.")],
    data: Root,
    out: Out,
    work: Work,
    device: Device = "auto",
    pace: Paced = StepPace.auto,
    commit: Commit = None,
) -> None:
    """Do one run of a benchmark; for its own use."""
    places = Places(data, out, work, device, commit, pace.value)
    measure(Run.from_json(json.loads(run)), places, TerminalProgress(console))


def _run_all(
    runs: Sequence[Run],
    places: Places,
    side_by_side: int,
    bases: int | None,
    dry_run: bool,
    minutes: float | None,
    score: Score = Score.protocol,
) -> None:
    for run in runs:
        settings_of(run)
        backbones.check_name(run.backbone)
    bench = Bench[Run]("run-one", finished_record, _outcome, lambda done: _table(_scored(done, score)), base_name)
    run_all(bench, runs, places, side_by_side, dry_run, minutes, bases)


def _outcome(record: Mapping[str, Any]) -> str:
    return " ".join(f"{name.capitalize()} {100 * record['metrics'][name]:.1f}" for name in _PERCENT)


def _scored(done: Sequence[tuple[Run, dict[str, Any]]], score: Score) -> list[tuple[Run, dict[str, Any]]]:
    found = [(run, score.of(record)) for run, record in done]
    return [(run, metrics) for run, metrics in found if metrics is not None]


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


def _split_seeds(text: str | None) -> tuple[int | None, ...]:
    return (None,) if text is None else read_numbers("--split-seeds", text)


def _base_changes(texts: list[str] | None) -> dict[str, str]:
    changes = read_changes(texts)
    for path in changes:
        if not path.startswith("base."):
            raise InlayError(f"{path!r} is no setting of the base stage; write --base-set base.… or --set {path}=….")
    return changes
