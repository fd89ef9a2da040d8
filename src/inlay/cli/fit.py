"""The command that learns labelled base classes."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from inlay.choice import choose_network, choose_share
from inlay.cli.options import Changes, Data, Device, DryRun, Exemplars, Restart, SkipBad, Stream, read_changes
from inlay.cli.progress import TerminalProgress
from inlay.cli.shown import console, show_rehearsal, show_stage
from inlay.data.source import measure, splits
from inlay.engine.device import find_device
from inlay.learner import Learner

__all__ = ["fit"]


def fit(
    data: Data,
    out: Annotated[Path, typer.Option(help="Run folder to make.", show_default=False)],
    backbone: Annotated[
        str | None, typer.Option(help="Network, see `inlay backbones`; by default one that suits images and machine.")
    ] = None,
    preset: Annotated[
        str, typer.Option(help="Settings to start from: inlay, paper, or a rival's, such as frost.")
    ] = "inlay",
    changes: Changes = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    size: Annotated[
        int | None, typer.Option(help="Side of the images; by default that of the data, or of a pretrained network.")
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(help="Share of each class that is kept out of training; a tenth by default, or more of few."),
    ] = None,
    self_test: Annotated[bool, typer.Option(help="Hide some classes afterwards and find them again.")] = True,
    exemplars: Exemplars = 0,
    device: Device = "auto",
    skip_bad: SkipBad = False,
    stream: Stream = None,
    restart: Restart = False,
    dry_run: DryRun = False,
) -> None:
    """Learn labelled base classes.

    Example: inlay fit photos/labelled --out shop.inlay
    """
    progress, settings = TerminalProgress(console), read_changes(changes)
    reason = None
    if backbone is None or held_out is None:
        measured = measure(data)
        held_out = choose_share(measured.images) if held_out is None else held_out
    if backbone is None:
        target = measured.size if size is None else (size, size)
        published = preset != "inlay"
        choice = choose_network(target, measured.channels, find_device(device), published=published, side=size)
        backbone, size, reason = choice.backbone, size or choice.side, choice.reason
        settings = {**choice.changes, **settings}
    learner = Learner(
        backbone, preset=preset, settings=settings, seed=seed, size=size, device=device, run=out, progress=progress
    )
    if reason is not None:
        progress.note(reason)
    if "test" in splits(data):
        command = shlex.join(["inlay", "evaluate", str(out), data])
        progress.note(f"Images to test on are not learned; score the run on them with `{command}`.")
    if dry_run:
        options = {"held_out": held_out, "skip_bad": skip_bad, "stream": stream, "restart": restart}
        show_rehearsal(learner.rehearse_fit(data, **options))  # type: ignore[arg-type]
        return
    if restart:
        learner.drop_progress()
    record = learner.fit(
        data, held_out=held_out, self_test=self_test, exemplars=exemplars, skip_bad=skip_bad, stream=stream
    )
    show_stage(learner, record)
    console.print(str(out))
