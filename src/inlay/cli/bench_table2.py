"""The command of Table 2: labelled classes stage by stage."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import table as rich_table

from inlay.bench.places import Places
from inlay.bench.table2 import CONTROLS, Choice, Run, base_name, measure
from inlay.bench.table2 import table2 as table2_runs
from inlay.bench.table2.record import finished_record
from inlay.cli.bench_runs import (
    Bases,
    Bench,
    Commit,
    DryRun,
    Minutes,
    Out,
    Root,
    SideBySide,
    Work,
    read_names,
    read_numbers,
    run_all,
)
from inlay.cli.options import Changes, Device, read_changes
from inlay.cli.progress import TerminalProgress
from inlay.cli.shown import console

__all__ = ["run_one_of_table2", "table2"]

_SCORES = {"average": "average", "last": "last", "forgetting": "forgetting", "nme_average": "average, NME"}


class _Table(StrEnum):
    a = "A"
    b = "B"


def table2(
    data: Root,
    table: Annotated[_Table, typer.Option(help="A: published settings; B: one setting for all.")] = _Table.a,
    methods: Annotated[
        str | None, typer.Option(help="Systems, in table A with or without +amm, such as icarl,icarl+amm; default all.")
    ] = None,
    stages: Annotated[str, typer.Option(help="Numbers of stages after the base stage.")] = "10,25",
    orders: Annotated[
        str | None, typer.Option(help="Class orders, or published; by default those of the table.")
    ] = None,
    controls: Annotated[str | None, typer.Option(help=f"Some of {','.join(CONTROLS)}; in B all by default.")] = None,
    base_classes: Annotated[int, typer.Option(min=0, help="Classes of the base stage; 0: all stages equal.")] = 50,
    dataset: Annotated[str, typer.Option(help="Data set.")] = "cifar100",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    changes: Changes = None,
    name: Annotated[str | None, typer.Option(help="Label of the runs in place of the one method.")] = None,
    side_by_side: SideBySide = 1,
    bases: Bases = None,
    out: Out = Path("benchmarks/results/table2"),
    work: Work = Path("runs/bench2"),
    device: Device = "auto",
    commit: Commit = None,
    minutes: Minutes = None,
    dry_run: DryRun = False,
) -> None:
    """Run the paper's Table 2; runs whose results are there are not repeated.

    Example: inlay bench table2 --data datasets --methods icarl,icarl+amm --stages 10
    """
    choice = Choice(
        table=table.value,
        methods=None if methods is None else read_names("--methods", methods),
        stages=read_numbers("--stages", stages),
        orders=None if orders is None else read_names("--orders", orders),
        controls=None if controls is None else read_names("--controls", controls),
        base_classes=base_classes,
        seed=seed,
        dataset=dataset,
        changes=read_changes(changes),
        name=name,
    )
    bench = Bench("run-one-of-table2", finished_record, _outcome, _shown, base_name)
    places = Places(data, out, work, device, commit)
    run_all(bench, table2_runs(choice), places, side_by_side, dry_run, minutes, bases)


def run_one_of_table2(
    run: Annotated[str, typer.Argument(help="The run as JSON.")],
    data: Root,
    out: Out,
    work: Work,
    device: Device = "auto",
    commit: Commit = None,
) -> None:
    """Do one run of Table 2; for its own use."""
    places = Places(data, out, work, device, commit)
    measure(Run.from_json(json.loads(run)), places, TerminalProgress(console))


def _outcome(record: Mapping[str, Any]) -> str:
    return f"average {_percent(record['average'])} last {_percent(record['last'])}"


def _shown(done: Sequence[tuple[Run, dict[str, Any]]]) -> rich_table.Table:
    """Show each run, in percent."""
    table = rich_table.Table("method", "stages", "order", box=None, pad_edge=False)
    for title in _SCORES.values():
        table.add_column(title, justify="right")
    for run, record in done:
        table.add_row(run.row, str(run.stages), run.order, *(_percent(record[score]) for score in _SCORES))
    return table


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f}"
