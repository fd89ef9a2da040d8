"""Measure how the cost of a discovery stage grows with images, classes and stages, and what more processes give.

    python -m benchmarks.scaling [--out benchmarks/results/scaling-cpu.json] [--parts images classes ...] [--quick]

Stages are the real ones of `inlay.pipeline` on small made-up images. Everything of a stage is timed, and its parts
apart. On a CPU images, classes and stages are measured with one thread, so that other work on the machine disturbs
less; processes share all cores. The tables are printed, and the file is written again after each part.
"""

import argparse
import functools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.scaling_child import digit_stages, pictures
from benchmarks.scaling_clock import Clock
from benchmarks.scaling_tables import summary
from benchmarks.speed_records import forget, header, record_file

from inlay import branches
from inlay.engine.checkpoint import read_json, write_json
from inlay.engine.device import find_device
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from inlay.pipeline import Workshop, learn_base, learn_stage
from inlay.settings import Settings, preset

ROOT = Path(__file__).parent.parent
PARTS = ("images", "classes", "stages", "processes")
SEED = 0
# From so many classes on, the samples of the refit are shared: 67 in the presets.
REFIT_CLASSES = 40
# Classes before the stage and in it, where neither is what is varied.
OLD, NEW = 10, 10
BASE_IMAGES_PER_CLASS = 8
FORWARD_IMAGES, FORWARD_RUNS = 256, 21
# Parts that take less than this share of the largest stage are too short for an exponent.
LEAST_SHARE = 0.02
# Settings under which the sweeps are repeated.
OF_IMAGES: dict[str, dict[str, Any]] = {
    "inlay without partners": {"assignment.partner_share": 0.0},
    "inlay": {},
}
OF_CLASSES: dict[str, dict[str, Any]] = {
    "inlay, full": {"replay.statistics": "full"},
    "inlay, shared": {"replay.statistics": "shared"},
}
OF_OLD_CLASSES = OF_CLASSES | {"inlay, full, replay in training": {"replay.statistics": "full", "replay.weight": 1.0}}


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        network: Name of the backbone.
        side: Side of the images.
        images: Numbers of images that are compared.
        classes: Numbers of classes that are compared.
        stage_images: Images of a stage where their number is not what is varied; more than `classes`.
        stages: Stages in a row.
        epochs: Epochs of each stage.
        batch: Images per step.
        samples: Samples per class in the refit of the head.
        seeds: Seeds of the runs of which one and two processes are compared.
        scored_epochs: Epochs of each stage of these runs.
        steps: Steps over which the speed of processes is measured.
    """

    network: str
    side: int
    images: tuple[int, ...]
    classes: tuple[int, ...]
    stage_images: int
    stages: int
    epochs: int
    batch: int
    samples: int
    seeds: tuple[int, ...]
    scored_epochs: int
    steps: int


CPU = Scale("resnet8", 8, (512, 1024, 2048, 4096), (5, 20, 80, 320), 640, 6, 2, 128, 50, (0, 1, 2), 10, 8)
GPU = Scale("resnet8", 32, (4096, 8192, 16384, 32768), (5, 20, 80, 320), 4096, 6, 2, 256, 500, (0, 1, 2), 10, 100)
QUICK = Scale("resnet8", 8, (32, 64), (3, 6), 32, 2, 1, 16, 5, (0, 1), 1, 1)


@dataclass(frozen=True)
class Way:
    """How processes are started.

    Attributes:
        name: Name in the table.
        group: Number of processes of the group; 0 is one process without a group.
        pace: How steps are taken.
        threads: Threads of each process; None leaves it to torch and inlay.
        scored: Whether whole runs are trained and scored, too.
    """

    name: str
    group: int = 0
    pace: str = "auto"
    threads: int | None = None
    scored: bool = True


WAYS = {
    "cpu": (
        Way("one process, one thread", threads=1, scored=False),
        Way("one process"),
        Way("two processes, gloo", group=2),
    ),
    "cuda": (
        Way("one process"),
        Way("one process, eager", pace="eager"),
        Way("one process, NCCL, eager", group=1, pace="eager"),
    ),
}


def main() -> None:
    """Measure everything, write it and print it."""
    options = _parser().parse_args()
    try:
        device = find_device(options.device)
        scale = QUICK if options.quick else (GPU if device.type == "cuda" else CPU)
        print(summary(measure(scale, device, options.parts, options.quick, record_file("scaling", options, device))))
    except InlayError as error:
        sys.exit(f"Error: {error}")


def measure(scale: Scale, device: torch.device, parts: Sequence[str], quick: bool, out: Path | None) -> dict[str, Any]:
    """Measure some parts and return the record.

    Args:
        scale: How much is measured.
        device: Where.
        parts: Some of `PARTS`.
        quick: Whether this only shows that everything runs.
        out: File of the record; None writes nothing.
    """
    record = _conditions(scale, device, parts, quick) | dict.fromkeys(PARTS)
    work = {"images": against_images, "classes": against_classes, "stages": against_stages, "processes": processes}
    for part in parts:
        began = time.perf_counter()
        with _one_thread(device if part != "processes" else None):
            record[part] = work[part](scale, device)
        forget()
        print(f"{part}: measured in {time.perf_counter() - began:.0f} s", flush=True)
        record["load_average_at_the_end"] = os.getloadavg()[0]
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_json(out, record)
    return record


def against_images(scale: Scale, device: torch.device) -> list[dict[str, Any]]:
    """Measure stages that differ in the number of images alone."""

    def row(changes: dict[str, Any], count: int) -> dict[str, Any]:
        settings = _settings(scale, changes)
        return timed_stage(_base(scale, OLD, settings, device), count, NEW, scale, settings, device)[0]

    _warm_up(scale, device)
    return [sweep("images", name, scale.images, functools.partial(row, each)) for name, each in OF_IMAGES.items()]


def against_classes(scale: Scale, device: torch.device) -> list[dict[str, Any]]:
    """Measure stages that differ in the number of old classes alone, or of new classes alone."""

    def row(changes: dict[str, Any], old: bool, count: int) -> dict[str, Any]:
        settings = _settings(scale, changes)
        base = _base(scale, count if old else OLD, settings, device)
        return timed_stage(base, scale.stage_images, NEW if old else count, scale, settings, device)[0]

    _warm_up(scale, device)
    variants = {"old classes": OF_OLD_CLASSES, "new classes": OF_CLASSES}
    return [
        sweep(what, name, scale.classes, functools.partial(row, changes, what == "old classes"))
        for what, settings in variants.items()
        for name, changes in settings.items()
    ]


def against_stages(scale: Scale, device: torch.device) -> list[dict[str, Any]]:
    """Measure stages in a row, each with as many images and new classes as the others."""
    settings = _settings(scale, {})
    _warm_up(scale, device)
    known = _base(scale, OLD, settings, device)
    rows = [{"n": 0, "classes": OLD, **_network_facts(known, scale, device)}]
    for index in range(1, scale.stages + 1):
        found, known = timed_stage(known, scale.stage_images, NEW, scale, settings, device)
        rows.append({"n": index, "classes": len(known.registry), **_network_facts(known, scale, device), **found})
    return rows


def processes(scale: Scale, device: torch.device) -> list[dict[str, Any]]:
    """Measure the ways to train with one process and with a group, at the same batch of all processes together."""
    return [{"way": way.name, "pace": way.pace, **_in_processes(way, scale, device)} for way in WAYS[device.type]]


def timed_stage(
    known: Knowledge, images: int, classes: int, scale: Scale, settings: Settings, device: torch.device
) -> tuple[dict[str, Any], Knowledge]:
    """Run a stage, and return its figures and what is known after it.

    Args:
        known: What is known before.
        images: Number of images.
        classes: Number of new classes.
        scale: Which images.
        settings: Settings of the stage.
        device: Where.
    """
    unlabelled = pictures(classes, images, scale.side, seed=known.record.index + 1).without_labels()
    clock = Clock(device)
    with clock.watching():
        began, began_cpu = clock.now(), time.process_time()
        after = learn_stage(known, unlabelled, classes, settings, Workshop(device))
        seconds, cpu_seconds = clock.now() - began, time.process_time() - began_cpu
    figures = {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "parts": clock.parts | {"rest": seconds - sum(clock.parts.values())},
        "bytes_per_class": after.statistics.bytes_per_class(),
    }
    return figures, after


def sweep(what: str, name: str, counts: Sequence[int], measured: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Measure something at several counts, and fit how it grows.

    Args:
        what: What is counted.
        name: Name of the settings.
        counts: At least two counts, the smallest first.
        measured: From a count to the figures of a stage.
    """
    rows = [{"n": count, **measured(count)} for count in counts]
    growths = {"stage": growth(counts, [row["seconds"] for row in rows])}
    for part, largest in rows[-1]["parts"].items():
        times = [row["parts"][part] for row in rows]
        if largest >= LEAST_SHARE * rows[-1]["seconds"] and min(times) > 0:
            growths[part] = growth(counts, times)
    return {"what": what, "settings": name, "rows": rows, "growth": growths}


def growth(counts: Sequence[float], seconds: Sequence[float]) -> dict[str, float]:
    """Return how times grow with a count.

    Args:
        counts: At least two counts, the smallest first.
        seconds: The time at each.

    Returns:
        "exponent" of the power of the count that fits all times best, in logarithms; "last_exponent" from the last
        but one to the last; "departure", the largest relative difference from the straight line, with a constant
        part, whose relative differences have the least sum of squares.
    """
    n, t = np.asarray(counts, dtype=float), np.asarray(seconds, dtype=float)
    exponent = float(np.polyfit(np.log(n), np.log(t), 1)[0])
    relative = np.stack([1 / t, n / t], axis=1)
    line, *_ = np.linalg.lstsq(relative, np.ones_like(t), rcond=None)
    return {
        "exponent": exponent,
        "last_exponent": math.log(t[-1] / t[-2]) / math.log(n[-1] / n[-2]),
        "departure": float(np.abs(relative @ line - 1).max()),
    }


def _settings(scale: Scale, changes: dict[str, Any]) -> Settings:
    schedule: dict[str, Any] = {"training.epochs": scale.epochs, "training.batch": scale.batch}
    base = {"base.training.epochs": 1, "base.training.batch": scale.batch, "base.contrastive": 0.0}
    refit = {"classifier.refit_per_class": scale.samples, "classifier.refit_samples": scale.samples * REFIT_CLASSES}
    return preset("inlay").changed(schedule | base | refit | changes)


def _base(scale: Scale, classes: int, settings: Settings, device: torch.device) -> Knowledge:
    """Return knowledge of some classes, hardly trained: stages after it cost as much as after any other."""
    images = pictures(classes, BASE_IMAGES_PER_CLASS * classes, scale.side, seed=SEED)
    return learn_base(images, scale.network, settings, SEED, Workshop(device))


def _warm_up(scale: Scale, device: torch.device) -> None:
    """Run a stage whose time does not count, as the first of a process takes longer."""
    settings = _settings(scale, {})
    timed_stage(_base(scale, OLD, settings, device), min(scale.images), NEW, scale, settings, device)


@torch.no_grad()
def _network_facts(known: Knowledge, scale: Scale, device: torch.device) -> dict[str, float]:
    images = known.form.prepare(pictures(OLD, FORWARD_IMAGES, scale.side, seed=SEED).images.to(device))
    # Only after the base stage is the network not folded yet.
    network = branches.fold(known.network, images[:2])
    clock, times = Clock(device), []
    for _ in range(FORWARD_RUNS):
        began = clock.now()
        network(images)
        times.append(clock.now() - began)
    return {
        "parameters": branches.count_parameters(network),
        "head_parameters": branches.count_parameters(known.head),
        "forward_seconds": statistics.median(times),
    }


def _in_processes(way: Way, scale: Scale, device: torch.device) -> dict[str, Any]:
    """Run benchmarks/scaling_child.py and return what it found."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(way.group)]
    # A number of threads for this process is not one for those.
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {} if way.threads is None else {"OMP_NUM_THREADS": str(way.threads)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, *(launcher if way.group else []), "-m", "benchmarks.scaling_child"]
        command += ["--out", str(out), "--device", device.type, "--pace", way.pace, "--steps", str(scale.steps)]
        command += ["--epochs", str(scale.scored_epochs), "--seeds", *map(str, scale.seeds if way.scored else ())]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-3000:]}")
        found: dict[str, Any] = read_json(out)
        return found


@contextmanager
def _one_thread(device: torch.device | None) -> Iterator[None]:
    """Compute with one thread on a CPU."""
    before = torch.get_num_threads()
    if device is not None and device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _conditions(scale: Scale, device: torch.device, parts: Sequence[str], quick: bool) -> dict[str, Any]:
    options = argparse.Namespace(quick=quick, data=None, modes=None)
    words = ["python -m benchmarks.scaling", f"--device {device.type}"]
    words += ["--quick"] if quick else []
    words += [] if set(parts) == set(PARTS) else [f"--parts {' '.join(parts)}"]
    digits = digit_stages()
    return header(options, device, scale.network) | {
        "command": " ".join(words),
        "seeds": {"costs": SEED, "scores": list(scale.seeds)},
        "load_average_at_the_start": os.getloadavg()[0],
        "load_average_at_the_end": None,
        "side": scale.side,
        "epochs": scale.epochs,
        "batch": scale.batch,
        "stage_images": scale.stage_images,
        "refit_per_class": scale.samples,
        "refit_samples": scale.samples * REFIT_CLASSES,
        "old_classes": OLD,
        "new_classes": NEW,
        "scored_epochs": scale.scored_epochs,
        "scored_images": [len(digits.base), len(digits.unlabelled(1)), len(digits.test(1))],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/scaling-<device>.json; none with --quick")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure; default: all")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--quick", action="store_true", help="tiny counts, to see that all of it runs")
    return parser


if __name__ == "__main__":
    main()
