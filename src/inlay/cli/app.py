"""The commands; their verbs are those of `inlay.Learner`."""

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from inlay import __version__
from inlay.cli import bench
from inlay.cli.backbones import backbones
from inlay.cli.doctor import doctor
from inlay.cli.export import export
from inlay.cli.fit import fit
from inlay.cli.learn import learn
from inlay.cli.options import (
    AsJson,
    BadImage,
    Changes,
    Data,
    Device,
    DryRun,
    Restart,
    Run,
    SkipBad,
    Stream,
    open_path,
    read_changes,
    read_class_names,
    read_cluster_counts,
    read_in_parts,
)
from inlay.cli.progress import TerminalProgress
from inlay.cli.review import report, review
from inlay.cli.serve import serve
from inlay.cli.shown import (
    console,
    csv_rows,
    errors,
    register,
    show_knowledge,
    show_prediction,
    show_rehearsal,
    show_report,
    show_rollback,
    show_scores,
    show_stage,
)
from inlay.data import ImageSet
from inlay.data.listing import Listing
from inlay.engine.world import World
from inlay.errors import FailedElsewhereError, InlayError, Interrupted
from inlay.evaluation import score_file
from inlay.learner import Learner
from inlay.methods import METHODS
from inlay.reading import left_out

__all__ = ["app", "main"]

app = typer.Typer(
    help="Teach an image classifier new classes from unlabelled images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _tell_version(asked: bool) -> None:
    if asked:
        console.print(f"inlay {__version__}")
        raise typer.Exit


@app.callback()
def _before_any_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Teach an image classifier new classes from unlabelled images."""


# A process that fails like the main one is ended within this time, and need not say why.
_SECONDS_FOR_THE_MAIN_PROCESS = 5.0
_FILES_AT_ONCE = 256
_STOPPED = "Stopped; repeat the command. A stage that was under way goes on from its last checkpoint."
# The first line of a PNG file, as text that is no text is read from stdin.
_PNG = "\udc89PNG"


def discover(
    run: Run,
    data: Data,
    classes: Annotated[int | None, typer.Option(help="Number of new classes; estimated by default.")] = None,
    all_new: Annotated[
        bool | None,
        typer.Option(
            "--all-new/--mixed",
            help="Whether all images are of new classes. By default known ones are sorted out if the run can.",
            show_default=False,
        ),
    ] = None,
    max_forgetting: Annotated[
        float | None, typer.Option(help="Refuse the stage if accuracy on old classes would fall by more, such as 0.05.")
    ] = None,
    changes: Changes = None,
    device: Device = "auto",
    skip_bad: SkipBad = False,
    stream: Stream = None,
    restart: Restart = False,
    dry_run: DryRun = False,
) -> None:
    """Find and learn new classes in unlabelled images.

    Example: inlay discover shop.inlay photos/new --classes 5
    """
    learner = _open(run, device)
    learner.settings = learner.settings.changed(read_changes(changes))
    if dry_run:
        rehearsal = learner.rehearse_discover(data, classes, skip_bad=skip_bad, stream=stream, restart=restart)
        show_rehearsal(rehearsal)
        return
    if restart:
        learner.drop_progress()
    options = {"all_new": all_new, "max_forgetting": max_forgetting, "skip_bad": skip_bad, "stream": stream}
    record = learner.discover(data, classes, **options)  # type: ignore[arg-type]
    if record is not None:
        show_stage(learner, record)
        show_report(learner, record, data)
    console.print(str(run))


def evaluate(
    run: Run,
    data: Data,
    match: Annotated[str | None, typer.Option(help="The images of the discovery stages, with labels.")] = None,
    as_json: AsJson = False,
    device: Device = "auto",
    skip_bad: SkipBad = False,
    stream: Stream = None,
) -> None:
    """Score a run on labelled test images.

    Example: inlay evaluate shop.inlay photos/test --match photos/new-labelled
    """
    learner = _open(run, device, quiet=as_json)
    show_scores(learner.evaluate(data, match, skip_bad=skip_bad, stream=stream), as_json)
    if not as_json:
        console.print(str(run))


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
    as_json: AsJson = False,
) -> None:
    """Score the predictions of another method in the same way.

    Outputs count from 0: first the base classes in their order, then those of stage 1, 2, and so on, in any order.

    Example: inlay score predictions.csv
    """
    names = None if class_names is None else read_class_names(class_names)
    counts = None if cluster_counts is None else read_cluster_counts(cluster_counts)
    show_scores(score_file(predictions, class_names=names, cluster_counts=counts), as_json)


def predict(
    run: Run,
    images: Annotated[
        list[str],
        typer.Argument(help="Image files, folders, .npy arrays; - reads paths from stdin.", show_default=False),
    ],
    csv: Annotated[
        Path | None, typer.Option(help="Write a CSV file instead of printing; earlier predictions are replaced.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per image.")] = False,
    device: Device = "auto",
    skip_bad: SkipBad = False,
    stream: Stream = None,
) -> None:
    """Name the class of images; those that cannot be read are named too, and make the exit code 1.

    Example: inlay predict shop.inlay new/1.jpg new/2.jpg
    """
    learner = _open(run, device, quiet=True)
    answered, bad = 0, []
    with nullcontext() if csv is None or not World.current().is_main else csv_rows(csv) as write_row:
        for part in _parts(learner, images, sys.maxsize if stream is False else _FILES_AT_ONCE):
            if isinstance(part, BadImage):
                bad.append(part.source)
                if not skip_bad:
                    errors.print(part.sentence)
                continue
            for found in learner.predict(part):
                answered += 1
                if write_row is not None:
                    write_row(found)
                if csv is None or as_json:
                    show_prediction(found, as_json)
    if csv is not None and not as_json:
        console.print(str(csv))
    if bad and skip_bad:
        errors.print(left_out(bad))
    if bad and not (skip_bad and answered):
        raise typer.Exit(1)


def rollback(
    run: Run,
    to: Annotated[int, typer.Option(help="Stage to go back to; 0 is the base stage.", show_default=False)],
) -> None:
    """Go back to an earlier stage; what is dropped is kept aside.

    Example: inlay rollback shop.inlay --to 1
    """
    # A later stage may be the damaged one.
    learner = Learner.load(run, stage=to, device="cpu", progress=TerminalProgress(console))
    show_rollback(learner, learner.rollback(to), run)
    console.print(str(run))


def info(run: Run, as_json: AsJson = False) -> None:
    """Show what a run knows and what it stores.

    Example: inlay info shop.inlay
    """
    learner = _open(run, "cpu", quiet=as_json)
    if as_json:
        print(json.dumps(register(learner), indent=1))
        return
    show_knowledge(learner)
    console.print(str(run))


def methods() -> None:
    """List the discovery methods.

    Example: inlay methods
    """
    for entry in METHODS.values():
        console.print(f"{entry.name:<10}{entry.summary}")


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

    if World.current().size > 1:
        raise InlayError("The demonstration is for one process; start it with `inlay demo`, without torchrun.")
    folder = out or free_folder(Path("runs"), "demo")
    try:
        outcome = run_demo(folder, seed, baselines=baselines, progress=TerminalProgress(console), command=_command())
    except Interrupted as stop:
        again = shlex.join(["inlay", "demo", "--out", str(folder), "--seed", str(seed)])
        again += "" if baselines else " --no-baselines"
        raise Interrupted(f"Stopped the demonstration; go on with `{again}`.") from stop
    console.print(stage_table(outcome.results))
    console.print(f"Report: {outcome.report}")
    console.print(f"Results: {outcome.results_file}")
    console.print(str(outcome.run))


# In the order in which somebody needs them, which is that of `inlay --help`.
_COMMANDS = (
    *(demo, doctor, fit, discover, learn, predict, evaluate, review, report, info, rollback, export, serve),
    *(backbones, methods, score),
)
for _command_of in _COMMANDS:
    app.command()(_command_of)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command line; errors are one sentence and exit code 2.

    With several processes only the main one writes to the terminal, unless another one alone fails.
    """
    is_main = World.current().is_main
    if not is_main:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    try:
        app(prog_name="inlay")
    except Interrupted as stop:
        _leave(str(stop) if is_main else "", 130)
    except (KeyboardInterrupt, SystemExit) as stop:
        # Typer makes an exit code of a Ctrl-C.
        if isinstance(stop, SystemExit) and stop.code != 130:
            raise
        _leave(_STOPPED if is_main else "", 130)
    except FailedElsewhereError:
        sys.exit(2)
    except InlayError as error:
        if not is_main:
            time.sleep(_SECONDS_FOR_THE_MAIN_PROCESS)
        _leave(f"Error: {error}", 2)


def _leave(text: str, code: int) -> NoReturn:
    if text:
        errors.print(text)
    sys.exit(code)


def _open(run: Path, device: str, quiet: bool = False) -> Learner:
    return Learner.load(run, device=device, progress=TerminalProgress(errors if quiet else console))


def _parts(learner: Learner, images: Sequence[str], at_once: int) -> Iterator[ImageSet | BadImage]:
    """Return the images in parts: those of the arguments, or of stdin one by one as their paths come in."""
    form = learner.knowledge.form
    if "-" not in images:
        return read_in_parts([open_path(path, form) for path in images], form, at_once)
    if len(images) > 1 or World.current().size > 1:
        raise InlayError("Write - alone and without torchrun; it stands for the paths that come in on stdin.")

    def opened() -> Iterator[Listing | ImageSet | BadImage]:
        came = False
        for path in filter(None, (line.rstrip("\r\n") for line in sys.stdin)):
            came = True
            if "\0" in path or path.startswith(_PNG):
                raise InlayError("Standard input holds no paths but data; write one path per line, as `ls new/*` does.")
            try:
                yield open_path(path, form)
            except InlayError as error:
                yield BadImage(path, str(error))
        if not came:
            errors.print("No path came in on standard input, so nothing was named.")

    return read_in_parts(opened(), form, at_once=1)


def _command() -> str:
    return shlex.join(["inlay", *sys.argv[1:]])
