"""The command that writes a classifier, or the images of a stage by their classes, for use without inlay."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from inlay.class_folders import check_class_folders, write_class_folders
from inlay.cli.options import Device, Run
from inlay.cli.progress import TerminalProgress
from inlay.cli.review import Images
from inlay.cli.shown import console
from inlay.clusters import write_csv, write_label_studio
from inlay.engine.world import World
from inlay.errors import InlayError
from inlay.learner import Learner
from inlay.output_file import check_output

__all__ = ["export"]


def export(
    run: Run,
    onnx: Annotated[Path | None, typer.Option(help="ONNX file to write.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Folder to make, with weights for torch.")] = None,
    floats: Annotated[
        bool, typer.Option("--float", help="The ONNX file takes float32 in 0..1 instead of uint8.")
    ] = False,
    clusters: Annotated[
        Path | None, typer.Option(help="Folder to make, with the new images of a stage in one folder per class.")
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="Link to the images instead of copying them.")] = False,
    csv: Annotated[
        Path | None, typer.Option(help="CSV file to write: the images of a stage and their classes.")
    ] = None,
    label_studio: Annotated[
        Path | None, typer.Option(help="JSON file to write: the same as tasks of Label Studio.")
    ] = None,
    stage: Annotated[int | None, typer.Option(help="Number of the stage; the latest by default.")] = None,
    images: Images = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    device: Device = "auto",
) -> None:
    """Write the classifier, or the images of a stage by their classes, for use without inlay.

    Example: inlay export shop.inlay --onnx shop.onnx
    """
    if all(target is None for target in (onnx, weights, clusters, csv, label_studio)):
        raise InlayError(
            "There is nothing to export to; write --onnx FILE, --weights FOLDER, --clusters FOLDER, --csv FILE or "
            "--label-studio FILE."
        )
    # Before anything is computed.
    if clusters is not None:
        check_class_folders(clusters, overwrite)
    for file in (csv, label_studio):
        if file is not None:
            check_output(file, overwrite)
    sorts = any(target is not None for target in (clusters, csv, label_studio))
    learner = Learner.load(run, device=device if sorts else "cpu", progress=TerminalProgress(console))
    if onnx is not None:
        console.print(str(learner.export(onnx, "onnx", pixels="float32" if floats else "uint8")))
    if weights is not None:
        console.print(str(learner.export(weights, "state-dict")))
    if not sorts:
        return
    found = learner.clusters(stage, images=images)
    if clusters is not None:
        _write(clusters, lambda: write_class_folders(found, clusters, link=link, overwrite=overwrite))
    if csv is not None:
        _write(csv, lambda: write_csv(found, csv, overwrite=overwrite))
    if label_studio is not None:
        version = f"{run.name} stage {learner.stages[-1].index}"
        _write(label_studio, lambda: write_label_studio(found, label_studio, version=version, overwrite=overwrite))


def _write(target: Path, action: Callable[[], object]) -> None:
    World.current().by_main(action)
    console.print(str(target))
