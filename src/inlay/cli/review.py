"""The command that opens the review page."""

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from inlay.cli.options import Device, Run
from inlay.cli.progress import TerminalProgress
from inlay.cli.shown import console
from inlay.engine.device import find_device
from inlay.engine.world import World
from inlay.errors import InlayError
from inlay.learner import Learner

__all__ = ["report", "review"]

Images = Annotated[str | None, typer.Option(help="Folder of the images of the stage, if it was moved.")]


def report(
    run: Run,
    stage: Annotated[int | None, typer.Option(help="Number of the stage; the latest by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="HTML file to write; by default beside the run folder.")] = None,
    images: Images = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    device: Device = "auto",
) -> None:
    """Write what was found in a stage as one HTML file.

    Example: inlay report shop.inlay
    """
    learner = Learner.load(run, device=device, progress=TerminalProgress(console))
    console.print(str(learner.report(out, stage=stage, images=images, overwrite=overwrite)))


def review(
    run: Run,
    images: Images = None,
    port: Annotated[int, typer.Option(help="Port of the page; 0 takes a free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    device: Device = "auto",
) -> None:
    """Look at the classes of the latest stage in a browser; name, merge, split or reject them.

    Example: inlay review shop.inlay
    """
    if World.current().size > 1:
        raise InlayError("The review page is for one process; start it with `inlay review`, without torchrun.")
    try:
        from inlay.review.server.serving import serve
        from inlay.review.server.session import open_session
    except ModuleNotFoundError as error:
        raise InlayError(
            f"The review page needs the package {error.name}; install it with `pip install 'inlay[review]'`."
        ) from error

    def shown(address: str) -> None:
        console.print(f"Stop the page with Ctrl-C. It is at {address}")
        if browser:
            webbrowser.open(address)

    with open_session(run, images, find_device(device), TerminalProgress(console)) as session:
        # Ctrl-C is how the page is closed.
        with suppress(KeyboardInterrupt):
            serve(session, port, shown)
        console.print(f"The page is closed; {len(session.after.registry.active())} classes are kept.")
    console.print(str(run))
