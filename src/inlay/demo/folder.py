"""Where a demonstration is written."""

from pathlib import Path

__all__ = ["free_folder"]


def free_folder(parent: Path, name: str) -> Path:
    """Return `parent/name`, or the first of `name-2`, `name-3`, … that does not exist."""
    candidate, number = parent / name, 1
    while candidate.exists():
        number += 1
        candidate = parent / f"{name}-{number}"
    return candidate
