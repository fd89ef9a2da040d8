"""The options of the commands, and how their texts are read."""

import re
from pathlib import Path
from typing import Annotated

import typer

from inlay.errors import InlayError

__all__ = [
    "AsJson",
    "Changes",
    "Data",
    "Device",
    "DryRun",
    "Restart",
    "Run",
    "SkipBad",
    "Stream",
    "read_changes",
    "read_class_names",
    "read_cluster_counts",
]

Run = Annotated[Path, typer.Argument(help="Run folder.", show_default=False)]
Data = Annotated[
    str, typer.Argument(help="Folder of images, tar shards, .npz file, list, or benchmark.", show_default=False)
]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Change a setting, such as training.epochs=30.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable images out.")]
Restart = Annotated[bool, typer.Option("--restart", help="Drop the progress of a stopped stage.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Take a few steps, print what the command would need, and write nothing."),
]
Stream = Annotated[
    bool | None,
    typer.Option(
        "--stream/--no-stream",
        help="Decode image files whenever they are needed, or keep them decoded in memory; by default they are kept "
        "if they take at most half of it.",
        show_default=False,
    ),
]


def read_changes(changes: list[str] | None) -> dict[str, str]:
    """Return the settings of `--set NAME=VALUE` by name.

    Raises:
        InlayError: If one has no value.
    """
    pairs = {}
    for change in changes or []:
        name, equals, value = change.partition("=")
        if not equals:
            raise InlayError(f"Write --set {name}=VALUE instead of --set {change}.")
        pairs[name] = value
    return pairs


def read_class_names(text: str) -> list[str]:
    """Return the names of `--class-names`.

    Raises:
        InlayError: If one is empty.
    """
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise InlayError(f"Write --class-names as names with commas between them, such as cat,dog, not {text!r}.")
    return names


def read_cluster_counts(text: str) -> list[int]:
    """Return the numbers of `--cluster-counts`.

    Raises:
        InlayError: If one is no number.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,6}", part) for part in parts):
        raise InlayError(f"Write --cluster-counts as numbers with commas between them, such as 3,3, not {text!r}.")
    return [int(part) for part in parts]
