"""Writing a whole run that was in memory, or copying one."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from inlay.engine.checkpoint import sync_folder, writing
from inlay.engine.world import World
from inlay.errors import InlayError
from inlay.output_file import refuse_unnamed
from inlay.run_folder import RunFolder
from inlay.sealed import making_sense_of

__all__ = ["save_run"]

Stage = tuple[Mapping[str, Tensor], dict[str, Any]]


def save_run(path: Path, stages: Sequence[Stage]) -> RunFolder:
    """Write a run of finished stages, or add those that a folder with its first stages lacks.

    A new run appears at its place whole or not at all.

    Args:
        path: A folder that does not exist, is empty, or holds the first stages of this run.
        stages: Tensors and facts of each stage, the base stage first.

    Returns:
        The run.

    Raises:
        InlayError: If something else is there, or the folder cannot be written.
    """
    folder = RunFolder(path)
    there = folder.stage_count if RunFolder.exists(path) else 0
    if there and _is_beginning(folder, stages):
        for index in range(there, len(stages)):
            folder.commit(index, "novel", *stages[index])
        return folder
    folder.refuse_occupied()
    if RunFolder.exists(path):
        raise InlayError(f"{path} holds a run that was begun; choose another folder, or finish that run first.")
    refuse_unnamed(path)
    temporary = path.with_name(f".{path.name}.saving")
    world = World.current()
    world.by_main(lambda: _remove(temporary))
    whole = RunFolder.create(temporary)
    for index, stage in enumerate(stages):
        whole.commit(index, "novel" if index else "base", *stage)
    world.by_main(lambda: _move(temporary, path))
    return folder


def _remove(leftover: Path) -> None:
    with writing(leftover):
        if leftover.exists():
            shutil.rmtree(leftover)


def _move(temporary: Path, path: Path) -> None:
    with writing(path):
        os.rename(temporary, path)
        sync_folder(path.parent)


@making_sense_of("stage")
def _is_beginning(folder: RunFolder, stages: Sequence[Stage]) -> bool:
    held = [_identity(folder.read_facts(index)) for index in range(folder.stage_count)]
    return held == [_identity(facts) for _, facts in stages[: len(held)]]


def _identity(facts: Mapping[str, Any]) -> str:
    return str(facts["stage"]["identity"])
