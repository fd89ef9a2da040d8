"""The commands; their verbs are those of `inlay.Learner`."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, JustifyMethod
from rich.table import Table

from inlay.cli.progress import TerminalProgress
from inlay.errors import InlayError, Interrupted
from inlay.evaluation import Scores, score_file
from inlay.knowledge import StageRecord
from inlay.learner import Learner
from inlay.methods import METHODS

__all__ = ["app", "main"]

app = typer.Typer(
    help="Teach an image classifier new classes from unlabelled images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# Names of classes and folders are shown as they are, square brackets and colons included.
_console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
_errors = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)

Run = Annotated[Path, typer.Argument(help="Run folder.", show_default=False)]
Data = Annotated[str, typer.Argument(help="Folder of images, .npz file, list, or benchmark.", show_default=False)]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Change a setting, such as training.epochs=30.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable images out.")]
Restart = Annotated[bool, typer.Option("--restart", help="Drop the progress of a stopped stage.")]


@app.command()
def fit(
    data: Data,
    out: Annotated[Path, typer.Option(help="Run folder to make.", show_default=False)],
    backbone: Annotated[str, typer.Option(help="Network.")] = "resnet18",
    preset: Annotated[str, typer.Option(help="Settings to start from: inlay or paper.")] = "inlay",
    changes: Changes = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    size: Annotated[int | None, typer.Option(help="Side of the images; taken from the data by default.")] = None,
    device: Device = "auto",
    skip_bad: SkipBad = False,
    restart: Restart = False,
) -> None:
    """Learn labelled base classes.

    Example: inlay fit photos/labelled --out shop.inlay
    """
    learner = Learner(
        backbone,
        preset=preset,
        settings=_changes(changes),
        seed=seed,
        size=size,
        device=device,
        run=out,
        progress=TerminalProgress(_console),
    )
    if restart:
        learner.drop_progress()
    _tell_stage(learner, learner.fit(data, skip_bad=skip_bad))
    _console.print(str(out))


@app.command()
def discover(
    run: Run,
    data: Data,
    classes: Annotated[int, typer.Option(help="Number of new classes in the images.", show_default=False)],
    changes: Changes = None,
    device: Device = "auto",
    skip_bad: SkipBad = False,
    restart: Restart = False,
) -> None:
    """Find and learn new classes in unlabelled images.

    Example: inlay discover shop.inlay photos/new --classes 5
    """
    learner = _open(run, device)
    learner.settings = learner.settings.changed(_changes(changes))
    if restart:
        learner.drop_progress()
    _tell_stage(learner, learner.discover(data, classes, skip_bad=skip_bad))
    _console.print(str(run))


@app.command()
def evaluate(
    run: Run,
    data: Data,
    match: Annotated[str | None, typer.Option(help="The images of the discovery stages, with labels.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Device = "auto",
    skip_bad: SkipBad = False,
) -> None:
    """Score a run on labelled test images.

    Example: inlay evaluate shop.inlay photos/test --match photos/new-labelled
    """
    learner = _open(run, device, quiet=as_json)
    _tell_scores(learner.evaluate(data, match, skip_bad=skip_bad), as_json)
    if not as_json:
        _console.print(str(run))


@app.command()
def score(
    predictions: Annotated[Path, typer.Argument(help="CSV file: split,stage,truth,prediction.", show_default=False)],
    class_names: Annotated[
        str | None,
        typer.Option(
            help="Base classes in the order of their outputs, such as cat,dog; by default those of the file, "
            "sorted as numbers where all are whole numbers, else as text."
        ),
    ] = None,
    cluster_counts: Annotated[
        str | None,
        typer.Option(
            help="Number of outputs of stage 1, 2, and so on, such as 3,3; by default as many as the stage has "
            "true classes in the file."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score the predictions of another method in the same way.

    Outputs count from 0: first the base classes in their order, then those of stage 1, 2, and so on, in any order.

    Example: inlay score predictions.csv
    """
    names = None if class_names is None else _class_names(class_names)
    counts = None if cluster_counts is None else _cluster_counts(cluster_counts)
    _tell_scores(score_file(predictions, class_names=names, cluster_counts=counts), as_json)


@app.command()
def predict(
    run: Run,
    images: Annotated[list[Path], typer.Argument(help="Image files or one folder.", show_default=False)],
    device: Device = "auto",
    skip_bad: SkipBad = False,
) -> None:
    """Name the class of images.

    Example: inlay predict shop.inlay new/1.jpg new/2.jpg
    """
    learner = _open(run, device, quiet=True)
    source = str(images[0]) if len(images) == 1 else [str(path) for path in images]
    for found in learner.predict(source, skip_bad=skip_bad):
        origin = "discovered" if found.discovered else "labelled"
        print(f"{found.source}\t{found.name}\t{found.probability:.3f}\t{origin}")


@app.command()
def info(run: Run) -> None:
    """Show what a run knows and what it stores.

    Example: inlay info shop.inlay
    """
    learner = _open(run, "cpu")
    knowledge = learner.knowledge
    table = Table(box=None, pad_edge=False)
    for heading in ("id", "class", "stage", "kind", "images"):
        justify: JustifyMethod = "right" if heading in ("id", "stage", "images") else "left"
        table.add_column(heading, justify=justify, overflow="fold")
    for entry in learner.classes:
        table.add_row(str(entry.id), entry.name, str(entry.stage), entry.kind, str(entry.size))
    _console.print(table, soft_wrap=False)
    height, width = knowledge.form.size
    parameters = sum(p.numel() for p in knowledge.network.parameters())
    _console.print(
        f"Network {knowledge.backbone or 'of your own'}: {parameters:,} parameters without the head; images "
        f"{width}×{height}, {knowledge.form.channels} channel(s); method {knowledge.settings.method}, seed "
        f"{knowledge.seed}."
    )
    _console.print(
        f"Stored per class: {knowledge.statistics.bytes_per_class():,} bytes of {knowledge.statistics.kind} "
        f"statistics; no images."
    )
    _console.print(str(run))


@app.command()
def methods() -> None:
    """List the discovery methods.

    Example: inlay methods
    """
    for entry in METHODS.values():
        _console.print(f"{entry.name:<8}{entry.summary}")


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder to make; by default a new one under runs/.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of split and initialisation.")] = 0,
    baselines: Annotated[bool, typer.Option(help="Run the baselines too.")] = True,
) -> None:
    """Learn four handwritten digits, then find six others in two stages.

    Example: inlay demo
    """
    from inlay.demo import free_folder, run_demo
    from inlay.review import stage_table

    folder = out or free_folder(Path("runs"), "demo")
    try:
        outcome = run_demo(folder, seed, baselines=baselines, progress=TerminalProgress(_console), command=_command())
    except Interrupted as stop:
        again = shlex.join(["inlay", "demo", "--out", str(folder), "--seed", str(seed)])
        again += "" if baselines else " --no-baselines"
        raise Interrupted(f"Stopped the demonstration; go on with `{again}`.") from stop
    _console.print(stage_table(outcome.results))
    _console.print(f"Report: {outcome.report}")
    _console.print(f"Results: {outcome.results_file}")
    _console.print(str(outcome.run))


def main() -> None:
    """Run the command line; errors are one sentence and exit code 2."""
    try:
        app(prog_name="inlay")
    except Interrupted as stop:
        _errors.print(str(stop))
        sys.exit(130)
    except KeyboardInterrupt:
        _errors.print("Stopped; repeat the command to go on from the last finished step.")
        sys.exit(130)
    except InlayError as error:
        _errors.print(f"Error: {error}")
        sys.exit(2)


def _open(run: Path, device: str, quiet: bool = False) -> Learner:
    return Learner.load(run, device=device, progress=TerminalProgress(_errors if quiet else _console))


def _command() -> str:
    return shlex.join(["inlay", *sys.argv[1:]])


def _changes(changes: list[str] | None) -> dict[str, str]:
    pairs = {}
    for change in changes or []:
        name, equals, value = change.partition("=")
        if not equals:
            raise InlayError(f"Write --set {name}=VALUE instead of --set {change}.")
        pairs[name] = value
    return pairs


def _class_names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise InlayError(f"Write --class-names as names with commas between them, such as cat,dog, not {text!r}.")
    return names


def _cluster_counts(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,6}", part) for part in parts):
        raise InlayError(f"Write --cluster-counts as numbers with commas between them, such as 3,3, not {text!r}.")
    return [int(part) for part in parts]


def _tell_stage(learner: Learner, record: StageRecord) -> None:
    _console.print(
        f"Stage {record.index}: {len(record.class_names)} classes from {record.images:,} images in "
        f"{record.seconds:.0f} s; {len(learner.classes)} classes in all."
    )
    if record.merge is not None:
        _console.print(
            f"Merged: outputs changed by at most {record.merge['max_abs_diff']:.1e}; "
            f"{record.merge['parameters_after']:,} parameters before and after."
        )


def _tell_scores(scores: Scores, as_json: bool) -> None:
    if as_json:
        print(json.dumps(scores.to_json(), indent=1))
        return
    for name, value in scores.to_json().items():
        if value is not None:
            _console.print(f"{name:<11}{_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(part)}" for key, part in value.items() if part is not None)
    return f"{value:.4f}" if isinstance(value, float) else str(value)
