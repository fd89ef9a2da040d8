"""The command that learns labelled new classes."""

from typing import Annotated

import typer

from inlay.cli.options import Changes, Data, Device, DryRun, Exemplars, Restart, Run, SkipBad, Stream, read_changes
from inlay.cli.progress import TerminalProgress
from inlay.cli.shown import console, show_rehearsal, show_stage
from inlay.learner import Learner

__all__ = ["learn"]


def learn(
    run: Run,
    data: Data,
    held_out: Annotated[float, typer.Option(help="Share of each class that is kept out of training.")] = 0.1,
    max_forgetting: Annotated[
        float | None, typer.Option(help="Refuse the stage if accuracy on old classes would fall by more, such as 0.05.")
    ] = None,
    exemplars: Exemplars = 0,
    changes: Changes = None,
    device: Device = "auto",
    skip_bad: SkipBad = False,
    stream: Stream = None,
    restart: Restart = False,
    dry_run: DryRun = False,
) -> None:
    """Learn new classes from labelled images; no image of an old class is needed, and those kept are used.

    Example: inlay learn shop.inlay photos/two-more-classes
    """
    learner = Learner.load(run, device=device, progress=TerminalProgress(console))
    learner.settings = learner.settings.changed(read_changes(changes))
    if dry_run:
        options = {"held_out": held_out, "skip_bad": skip_bad, "stream": stream, "restart": restart}
        show_rehearsal(learner.rehearse_learn(data, **options))  # type: ignore[arg-type]
        return
    if restart:
        learner.drop_progress()
    record = learner.learn(
        data,
        held_out=held_out,
        max_forgetting=max_forgetting,
        exemplars=exemplars,
        skip_bad=skip_bad,
        stream=stream,
    )
    show_stage(learner, record)
    console.print(str(run))
