"""The file of results of a run."""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch

import inlay
from inlay import branches
from inlay.bench.places import Places
from inlay.bench.plan import Run
from inlay.bench.recipe import base_text, changes_of, schedule_text
from inlay.bench.systems import system
from inlay.engine.checkpoint import read_json
from inlay.errors import InlayError
from inlay.evaluation import Scores
from inlay.knowledge import Knowledge
from inlay.settings import Settings

__all__ = [
    "DIAGNOSES",
    "METRICS",
    "Repeatable",
    "commit_of",
    "finished_record",
    "hardware_of",
    "metrics_of",
    "new_record",
    "origin_of",
    "sizes_of",
]

DIAGNOSES = ("novel_head", "calibrated", "released", "tradeoff", "old_new")
METRICS = ("old", "new", "all", "groups", "new_head", "old_head", "nmi", "ari")


class Repeatable(Protocol):
    """A run that can be made again."""

    @property
    def command(self) -> str:
        """The command that repeats the run, without the folders of a machine."""


def new_record(run: Run, settings: Settings, places: Places) -> dict[str, Any]:
    """Return the record of a run of which nothing is known yet but how it is made; scores are fractions."""
    return {
        "method": run.system,
        "name": run.name,
        "preset": run.preset or system(run.system).preset,
        "dataset": run.dataset,
        "seed": run.seed,
        "split": "first" if run.split_seed is None else f"seed {run.split_seed}",
        "steps": run.steps,
        "backbone": run.backbone,
        "base": run.base,
        "base_recipe": base_text(settings),
        "schedule": None if system(run.system).supervised else schedule_text(settings.training),
        "metrics": dict.fromkeys(METRICS),
        **dict.fromkeys(DIAGNOSES),
        "matched_on": None,
        "base_metrics": dict.fromkeys(METRICS),
        "stages": [],
        "parameters": None,
        "stored_bytes": None,
        "seconds": {"base": None, "stages": []},
        "merge": None,
        "settings": changes_of(run),
        **origin_of(run, places),
    }


def origin_of(run: Repeatable, places: Places) -> dict[str, Any]:
    """Say on what, with what and when a run is made, and how to repeat it."""
    return {
        "hardware": hardware_of(places.device),
        "versions": {"inlay": inlay.__version__, "torch": str(torch.__version__), "python": platform.python_version()},
        "commit": places.commit or commit_of(Path(__file__).parent),
        "command": run.command,
        "date": datetime.now(UTC).date().isoformat(),
    }


def _is_scored(record: Mapping[str, Any]) -> bool:
    return record["metrics"]["all"] is not None


def finished_record(
    run: Repeatable, file: Path, is_finished: Callable[[Mapping[str, Any]], bool] = _is_scored
) -> dict[str, Any] | None:
    """Return the record of a run that was finished earlier, or None.

    Args:
        run: The run.
        file: Its file of results.
        is_finished: Whether a record is whole.

    Raises:
        InlayError: If the file holds the results of another run, or is damaged.
    """
    record = read_json(file) if file.exists() else None
    if record is None or not is_finished(record):
        return None
    if record["command"] != run.command:
        raise InlayError(f"{file} holds the results of `{record['command']}`; pass --name or another --out.")
    found: dict[str, Any] = record
    return found


def metrics_of(scores: Scores) -> dict[str, object]:
    """Return the scores that are recorded, by name."""
    values = scores.to_json()
    return {name: values[name] for name in METRICS}


def sizes_of(known: Knowledge) -> dict[str, int]:
    """Count the parameters of the folded network and its head, and the bytes kept of all classes together."""
    network = branches.folded_parameters(known.network, known.form.example().to(known.device))
    kept = [*known.statistics.tensors().values(), *([] if known.densities is None else known.densities.buffers())]
    kept += [] if known.reference is None else [*known.reference.tensors().values()]
    kept += [] if known.base_head is None else [*known.base_head.parameters()]
    return {
        "parameters": network + branches.count_parameters(known.head),
        "stored_bytes": sum(tensor.numel() * tensor.element_size() for tensor in kept),
    }


def hardware_of(device: str) -> str:
    """Name what is computed on.

    Args:
        device: "auto", "cpu" or "cuda".
    """
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{os.cpu_count()} CPU cores, {platform.machine()}, {torch.get_num_threads()} threads"


def commit_of(folder: Path) -> str:
    """Return the commit of the code in a folder, marked if it was changed since; "unknown" without git.

    The variable COMMIT goes before it, for machines that have the code without its history.
    """
    if "COMMIT" in os.environ:
        return os.environ["COMMIT"]
    if shutil.which("git") is None:
        return "unknown"
    described = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    shown = subprocess.run(described, capture_output=True, text=True, check=False, cwd=folder)
    return shown.stdout.strip() or "unknown"
