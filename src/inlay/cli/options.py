"""The options of the commands, and how their texts are read."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from inlay.data import ImageSet, load
from inlay.data.decode import decode_files, decode_image
from inlay.data.listing import ImageFile, Listing
from inlay.data.source import READERS
from inlay.errors import InlayError
from inlay.knowledge import InputForm
from inlay.trained_model import as_batch

__all__ = [
    "AsJson",
    "BadImage",
    "Changes",
    "Data",
    "Device",
    "DryRun",
    "Exemplars",
    "Restart",
    "Run",
    "SkipBad",
    "Stream",
    "open_path",
    "read_changes",
    "read_class_names",
    "read_cluster_counts",
    "read_in_parts",
]


@dataclass(frozen=True)
class BadImage:
    """A path that holds no sound image.

    Attributes:
        source: The path.
        sentence: What is wrong with it, and what to do.
    """

    source: str
    sentence: str


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
Exemplars = Annotated[
    int, typer.Option(min=0, help="Images of each class to keep beside the run folder, for `inlay learn`.")
]
Stream = Annotated[
    bool | None,
    typer.Option(
        "--stream/--no-stream",
        help="Decode image files whenever they are needed, or keep them decoded in memory; by default they are kept "
        "if they take at most a quarter of it.",
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


def open_path(path: str, form: InputForm) -> Listing | ImageSet:
    """Find out what images a path holds; image files are not decoded yet.

    Args:
        path: Anything that `inlay.data.load` reads, or a .npy file of one image or several.
        form: What images the network takes.

    Raises:
        InlayError: If there is no such path, or no images in it.
    """
    if path.lower().endswith(".npy"):
        return _array(path)
    place = Path(path).expanduser()
    try:
        reader = next((reader for reader in READERS if reader.recognises(place)), None)
        if reader is not None:
            return reader.read(place, (*reader.splits(place), "train")[0])
    except OSError as error:
        raise InlayError(f"'{path}' cannot be read ({error.strerror}); make it readable.") from error
    return load(path, size=form.size, channels=form.channels, cache=False)


def read_in_parts(
    opened: Iterable[Listing | ImageSet | BadImage], form: InputForm, at_once: int
) -> Iterator[ImageSet | BadImage]:
    """Decode image files a few at a time, so that answers can be given before all are read.

    Args:
        opened: What paths hold, as `open_path` finds out.
        form: What images the network takes.
        at_once: Number of image files in a part.

    Returns:
        Images in order, and each image that cannot be read after the images of its part.
    """
    waiting: list[ImageFile] = []
    for found in opened:
        if isinstance(found, Listing):
            waiting += found.files
        while waiting and (len(waiting) >= at_once or not isinstance(found, Listing)):
            yield from _decoded(waiting[:at_once], form)
            del waiting[:at_once]
        if not isinstance(found, Listing):
            yield found
    yield from _decoded(waiting, form)


def _decoded(files: list[ImageFile], form: InputForm) -> Iterator[ImageSet | BadImage]:
    pixels, good = decode_files(files, form.size, form.channels, skip_bad=True)
    if len(pixels):
        names = tuple(str(file) for file, sound in zip(files, good, strict=True) if sound)
        yield ImageSet(torch.from_numpy(pixels), names)
    for file, sound in zip(files, good, strict=True):
        if not sound:
            yield BadImage(str(file), _reason(file))


def _reason(file: ImageFile) -> str:
    try:
        decode_image(file)
    except InlayError as error:
        return str(error)
    return f"'{file}' could not be read as an image a moment ago; repeat the command."


def _array(path: str) -> ImageSet:
    try:
        found = np.load(Path(path).expanduser(), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InlayError(f"'{path}' cannot be read as an array ({error}); write it with numpy.save.") from error
    return ImageSet.from_arrays(as_batch(found), origin=path)
