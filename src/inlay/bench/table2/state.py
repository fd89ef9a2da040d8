"""What runs keep in the work folder: base stages that they share, and where each stands.

These files are pickles, which can run code when they are read; only those that this program wrote are.
"""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from inlay.engine.checkpoint import writing
from inlay.errors import InlayError
from inlay.increments.course import Standing
from inlay.increments.memory import Memory

__all__ = ["read_state", "write_state"]


def write_state(file: Path, state: dict[str, Any]) -> None:
    """Write a state, whole or not at all.

    Raises:
        InlayError: If the file cannot be written.
    """
    beside = file.with_suffix(".tmp")
    with writing(file):
        with beside.open("wb") as opened:
            torch.save(state, opened)
        beside.replace(file)


def read_state(file: Path, device: torch.device) -> dict[str, Any] | None:
    """Return a state with its tensors on a device; None if there is none.

    Raises:
        InlayError: If the file is damaged.
    """
    if not file.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=False)
    except Exception as error:  # A pickle fails in as many ways as there are classes in it.
        raise InlayError(f"{file} cannot be read ({type(error).__name__}); delete it to begin again.") from error
    return {name: _chosen_on_cpu(value) if isinstance(value, Standing) else value for name, value in state.items()}


def _chosen_on_cpu(standing: Standing) -> Standing:
    """Images are chosen on the CPU, so their numbers belong there."""
    return dataclasses.replace(standing, memory=Memory(tuple(rows.cpu() for rows in standing.memory.ranked)))
