"""Under which conditions branches were measured: the head of the files that benchmarks/branches.py writes."""

import argparse
import os
import platform
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from inlay.bench.records import commit_of
from inlay.engine.checkpoint import read_json
from inlay.errors import InlayError

PACKAGES = ("torch", "numpy", "transformers", "timm", "torchvision", "peft")
PRECISION = {
    "cpu": {"forward": "float32", "training": "float32"},
    "cuda": {"forward": "float32 with torch's own TF32", "training": "bfloat16 autocast; both channels_last"},
}


def earlier(out: Path, record: Mapping[str, Any]) -> dict[tuple[object, ...], dict[str, Any]]:
    """Return what a file holds already, by name and image; other conditions than those of the record are refused."""
    if not out.exists():
        return {}
    earlier = read_json(out)
    for key in ("batch", "device", "hardware", "versions"):
        if earlier[key] != record[key]:
            raise InlayError(f"{out} was measured with another {key} ({earlier[key]}); choose another --out.")
    return {(found["name"], *found["image"]): found for found in earlier["networks"]}


def header(options: argparse.Namespace) -> dict[str, Any]:
    """Return under which conditions the networks are measured."""
    packages = {package: version(package) for package in PACKAGES if find_spec(package)}
    hardware = f"{os.cpu_count()} CPU cores, {platform.machine()}, {torch.get_num_threads()} threads"
    return {
        "command": _command(options),
        "commit": commit_of(Path(__file__).parent),
        "hardware": torch.cuda.get_device_name() if options.device == "cuda" else hardware,
        "versions": {"python": platform.python_version(), **packages},
        "date": datetime.now(UTC).date().isoformat(),
        "device": options.device,
        "precision": PRECISION[options.device],
        "batch": options.batch,
        "runs": options.runs,
    }


def _command(options: argparse.Namespace) -> str:
    """Return the command that gives these figures; where they are written, and what was there, is left out."""
    command = f"python benchmarks/branches.py --networks {shlex.join(options.networks)} --device {options.device}"
    command += f" --batch {options.batch} --runs {options.runs}"
    limit = options.seconds_per_network
    return command if limit is None else f"{command} --seconds-per-network {limit:g}"
