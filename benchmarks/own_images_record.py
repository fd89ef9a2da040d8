"""What the records of the benchmarks of own images have in common."""

import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import inlay
from inlay.bench.records import commit_of, hardware_of

__all__ = ["origin", "runs_before"]


def origin(device: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Say by what code, when and on what is measured, with no run yet."""
    return {
        "commit": commit_of(Path(__file__).parent),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": hardware_of(device),
        "versions": {"inlay": inlay.__version__, "torch": str(torch.__version__), "python": platform.python_version()},
        "seeds": list(seeds),
        "runs": [],
    }


def runs_before(file: Path, record: dict[str, Any], options: Sequence[str]) -> dict[int, dict[str, Any]]:
    """Return the runs by seed that the same code has measured on the same hardware with the same options.

    Args:
        file: Where they were written.
        record: The record to be written.
        options: Entries of a record that say what was measured.
    """
    if not file.exists():
        return {}
    before = json.loads(file.read_text(encoding="utf-8"))
    if any(before[key] != record[key] for key in (*options, "commit", "hardware")):
        return {}
    return {run["seed"]: run for run in before["runs"]}
