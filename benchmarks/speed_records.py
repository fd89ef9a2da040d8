"""What benchmarks/speed.py writes down: the conditions, a row for each measurement, and the headline."""

import argparse
import gc
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from inlay.bench.records import commit_of
from inlay.engine.checkpoint import write_json

__all__ = ["PLAIN", "Sheet", "failed_row", "forget", "header", "headline", "record_file", "row"]

RESULTS = Path(__file__).parent / "results"
PLAIN = "plain"
PACKAGES = ("torch", "torchvision", "numpy", "pillow")
# GFLOP of one training image of 32×32: ResNet-18 forward and backward; in ADM 11 times the 1.10 of one pass forward:
# two views through base and novel convolutions, the teacher, the gradients of all inputs and of novel kernels.
GFLOP_PER_IMAGE = {("resnet18", "base"): 3.34, ("resnet18", "adm"): 12.1}


@dataclass(frozen=True)
class Sheet:
    """The record under way.

    Attributes:
        record: Conditions and figures.
        out: Its file, written again after each measurement; None writes nothing.
    """

    record: dict[str, Any]
    out: Path | None

    def note(self, told: str, **figures: Any) -> None:
        """Add figures, keep the record and say so."""
        self.record.update(figures)
        self.record["headline"] = headline(self.record["rows"], self.record["base_to_target"])
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.out, self.record)
        print(told, flush=True)

    def add_row(self, kind: str, batch: int, mode: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Do some work, add its row, or one with the error that stopped it, and return the row."""
        matmul = self.record["matmul"]["tflops"]
        try:
            found = row(kind, batch, mode, work(), self.record["network"], matmul)
            told = f"{found['images_per_s']:,.0f} images/s"
        except Exception as error:  # whatever a driver or a compiler raises must not take the other rows along
            found = failed_row(kind, batch, mode, error)
            told = found["error"]
        forget()
        self.record["rows"].append(found)
        self.note(f"{kind}, batch {batch}, {mode}: {told}")
        return found


def forget() -> None:
    """Let go of what earlier work has left: memory, and compiled code, of which torch keeps only a few versions."""
    gc.collect()
    if torch.cuda.is_available():
        torch.compiler.reset()
        torch.cuda.empty_cache()


def record_file(kind: str, options: argparse.Namespace, device: torch.device) -> Path | None:
    """Return where a record goes: a quick run is kept only where one says so.

    Args:
        kind: The benchmark, with which the name of the file begins.
        options: The command line, with `out` and `quick`.
        device: The device measured.
    """
    if options.out is not None or options.quick:
        return options.out  # type: ignore[no-any-return]
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    return RESULTS / f"{kind}-{name.lower().removeprefix('nvidia ').replace(' ', '-')}.json"


def header(options: argparse.Namespace, device: torch.device, network: str) -> dict[str, Any]:
    """Return under which conditions everything is measured.

    Args:
        options: The command line, with `quick`, `data` and `modes`.
        device: The device measured.
        network: Name of the backbone.
    """
    cores = f"{os.cpu_count()} CPU cores, {platform.machine()}"
    alone = f"{cores}, {torch.get_num_threads()} threads"
    return {
        "command": _command(options, device),
        "commit": commit_of(Path(__file__).parent),
        "hardware": f"{torch.cuda.get_device_name()}, {cores}" if device.type == "cuda" else alone,
        "versions": {"python": platform.python_version(), **_versions()},
        "date": datetime.now(UTC).date().isoformat(),
        "device": device.type,
        "quick": bool(options.quick),
        "network": network,
    }


def row(
    kind: str, batch: int, mode: str, found: Mapping[str, Any], network: str, matmul_tflops: float | None
) -> dict[str, Any]:
    """Return one line of the table.

    Args:
        kind: "base" or "adm".
        batch: Images per step.
        mode: How the steps were run.
        found: "images_per_s", "seconds", "waiting_s" and "warm_up_s", and whatever else was measured.
        network: Name of the backbone.
        matmul_tflops: What a large matrix product reaches; None if it was not measured.
    """
    gflop = GFLOP_PER_IMAGE.get((network, kind))
    tflops = None if gflop is None else found["images_per_s"] * gflop / 1000
    share = None if tflops is None or matmul_tflops is None else tflops / matmul_tflops
    return {
        "kind": kind,
        "batch": batch,
        "mode": mode,
        "error": None,
        **found,
        "tflops": tflops,
        "share_of_matmul": share,
    }


def failed_row(kind: str, batch: int, mode: str, error: Exception) -> dict[str, Any]:
    """Return the line of a measurement that could not be made, with the reason."""
    return {"kind": kind, "batch": batch, "mode": mode, "error": " ".join(str(error).split())[:300]}


def headline(rows: Sequence[Mapping[str, Any]], to_target: Mapping[str, Any] | None) -> dict[str, float | None]:
    """Return the figures that sum everything up; what was not measured is None.

    Args:
        rows: All lines of the table.
        to_target: The base stage on CIFAR-10, with the "mean_seconds" of its seeds.

    Returns:
        Images per second of our fastest mode, "base_512", "base_128" and "adm_256"; the seconds of the base stage,
        "base_to_target_s"; and "ratio_to_plain", the smallest ratio of ours to the plain way at equal work and batch.
    """
    work = {"base_512": ("base", 512), "base_128": ("base", 128), "adm_256": ("adm", 256)}
    rates = {name: _fastest(rows, *which) for name, which in work.items()}
    plain = {name: _fastest(rows, *which, plain=True) for name, which in work.items()}
    pairs = [(rates[name], plain[name]) for name in work]
    ratios = [ours / theirs for ours, theirs in pairs if ours is not None and theirs is not None]
    return {
        **rates,
        "base_to_target_s": None if to_target is None else to_target["mean_seconds"],
        # One kind of work that is missing might have been the smallest.
        "ratio_to_plain": min(ratios) if len(ratios) == len(work) else None,
    }


def _fastest(rows: Sequence[Mapping[str, Any]], kind: str, batch: int, plain: bool = False) -> float | None:
    rates = [
        line["images_per_s"]
        for line in rows
        if line["error"] is None and (line["kind"], line["batch"]) == (kind, batch) and (line["mode"] == PLAIN) == plain
    ]
    return max(rates, default=None)


def _versions() -> dict[str, str]:
    found = {package: version(package) for package in PACKAGES if find_spec("PIL" if package == "pillow" else package)}
    return found | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def _command(options: argparse.Namespace, device: torch.device) -> str:
    """Return the command that gives these figures, without the folders of this machine."""
    words = ["python -m benchmarks.speed", f"--device {device.type}"]
    words += ["--quick"] if options.quick else []
    words += ["--data CIFAR10"] if options.data else []
    words += [f"--modes {' '.join(options.modes)}"] if options.modes else []
    return " ".join(words)
