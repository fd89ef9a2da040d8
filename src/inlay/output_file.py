"""Files that are written for people: whole or not at all, and over nothing that they did not give up."""

import os
from pathlib import Path

from inlay.engine.checkpoint import write_whole
from inlay.errors import InlayError
from inlay.run_folder import RunFolder

__all__ = ["check_output", "refuse_run_folder", "refuse_unnamed", "write_output"]


def check_output(path: Path, overwrite: bool) -> None:
    """Make sure that a file may be written: beside run folders, in a folder that exists.

    Args:
        path: The file.
        overwrite: Whether a file that is there may be replaced.

    Raises:
        InlayError: If it may not, or its folder does not exist.
    """
    refuse_run_folder(path)
    if path.is_dir() or not path.parent.is_dir():
        raise InlayError(f"{path} cannot be written; give the name of a file in a folder that exists.")
    if os.path.lexists(path) and not overwrite:
        raise InlayError(f"{path} is there already; choose another name, or pass --overwrite to replace it.")


def refuse_run_folder(path: Path) -> None:
    """Keep out of run folders what is not a run's own, images above all.

    Raises:
        InlayError: If the path lies in a run folder.
    """
    whole = path.resolve()
    for folder in (whole, *whole.parents):
        if RunFolder.exists(folder):
            raise InlayError(
                f"{path} lies in the run folder {folder}, which holds a run and nothing else; choose a place beside it."
            )


def refuse_unnamed(folder: Path) -> None:
    """Refuse "." and the like as folders that appear whole, as those are made beside their place and moved there.

    Raises:
        InlayError: If the path does not end in a name.
    """
    if folder.name in ("", ".."):
        raise InlayError(f"{folder} is no name for a folder to make; give one, such as {folder / 'exported'}.")


def write_output(path: Path, text: str, overwrite: bool) -> None:
    """Write a text file, whole or not at all.

    Args:
        path: The file.
        text: Its content, which is written as UTF-8 with its line ends as they are; paths that are no text go through
            unchanged.
        overwrite: Whether a file that is there may be replaced.

    Raises:
        InlayError: If it may not be written, or cannot be; what was there is untouched then.
    """
    check_output(path, overwrite)
    write_whole(path, text.encode("utf-8", "surrogateescape"))
