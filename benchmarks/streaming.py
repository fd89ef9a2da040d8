"""Train on more images than memory may hold, by streaming, and write what it took.

    python benchmarks/streaming.py --work FOLDER [--images 44000] [--limit-mb 1500] [--out FILE]

Makes JPEG files of 128×128 pixels, by default 2.2 GB when decoded, as a folder of classes and as tar shards; they stay
in FOLDER for the next time. Each form is learned for one epoch by a process of its own with `Learner.fit(...,
stream=True)` and an empty cache, so that everything is in the figures: the pass that checks the files, training, and
the class statistics. The network is a ResNet-8 behind a 4×4 mean, small enough for reading to be the larger part.
Exits with 1 if a process took more memory at its peak than the limit.
"""

import argparse
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import nn

from inlay import Learner, backbones
from inlay.bench.records import commit_of
from inlay.engine import feed
from inlay.engine.feed import StreamedFeed

RESULTS = Path(__file__).parent / "results" / "streaming-cpu.json"
SIDE, CHANNELS, CLASSES, BATCH = 128, 3, 10, 128
PER_SHARD = 1000
MEGABYTE = 10**6
FORMS = ("folder", "shards")


def main() -> None:
    """Make the images, measure both forms, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for images and caches")
    parser.add_argument("--images", type=int, default=44_000)
    parser.add_argument("--limit-mb", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--measure", choices=FORMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.work / options.measure)))
        return
    made(options.work, options.images)
    rows = [{"form": form, **_in_a_process_of_its_own(options, form)} for form in FORMS]
    _show(rows)
    record = {
        "command": f"python benchmarks/streaming.py --work FOLDER --images {options.images}",
        "commit": commit_of(Path(__file__).parent),
        "hardware": f"{_processor()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.now(UTC).date().isoformat(),
        "images": options.images,
        "image": [CHANNELS, SIDE, SIDE],
        "decoded_bytes": options.images * CHANNELS * SIDE * SIDE,
        "batch": BATCH,
        "limit_mb": options.limit_mb,
        "rows": rows,
    }
    options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    sys.exit(any(row["peak_mb"] > options.limit_mb for row in rows))


# The images


def made(work: Path, images: int) -> None:
    """Write the images into the folders `folder` and `shards` of a folder, unless they are there."""
    done = work / f"made-{images}"
    if done.exists():
        return
    if any((work / form).exists() for form in FORMS):
        sys.exit(f"{work} holds other images; name another folder or remove them.")
    for label in range(CLASSES):
        (work / "folder" / f"class-{label}").mkdir(parents=True)
    (work / "shards").mkdir()
    firsts = range(0, images, PER_SHARD)
    with ProcessPoolExecutor() as pool:
        list(pool.map(_write_shard, [work] * len(firsts), firsts, [min(n + PER_SHARD, images) for n in firsts]))
    done.touch()


def _write_shard(work: Path, first: int, last: int) -> None:
    """Write some images into one shard, and each into the folder of its class."""
    with tarfile.open(work / "shards" / f"shard-{first // PER_SHARD:03}.tar", "w") as shard:
        for number, picture in zip(range(first, last), _pictures(first, last), strict=True):
            label = number % CLASSES
            (work / "folder" / f"class-{label}" / f"{number:06}.jpg").write_bytes(picture)
            for suffix, content in (("jpg", picture), ("cls", str(label).encode())):
                entry = tarfile.TarInfo(f"{number:06}.{suffix}")
                entry.size = len(content)
                shard.addfile(entry, io.BytesIO(content))


def _pictures(first: int, last: int) -> Iterator[bytes]:
    """Yield JPEG files: stripes whose direction and width tell the class, any colours, noise."""
    random = np.random.default_rng(first)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    for number in range(first, last):
        label = number % CLASSES
        turn = np.pi * label / CLASSES + random.normal(0, 0.05)
        wave = (rows * np.sin(turn) + columns * np.cos(turn)) / (2 + label % 3) + random.uniform(0, 2 * np.pi)
        dark, light = random.uniform(0, 120, CHANNELS), random.uniform(135, 255, CHANNELS)
        pixels = dark + (light - dark) * (np.sin(wave)[..., None] + 1) / 2
        pixels += random.normal(0, 20, (SIDE, SIDE, 1)).astype(np.float32)
        stream = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, format="JPEG", quality=85)
        yield stream.getvalue()


# The measurement


class CountedFeed(StreamedFeed):
    """A feed that can be asked for its waiting time after the learner is done with it."""

    all: list["CountedFeed"] = []  # noqa: RUF012

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        CountedFeed.all.append(self)


class Clock:
    """A receiver of news that notes the seconds of each piece of work, and those of them spent waiting for images."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.waiting: dict[str, float] = {}
        self._name = ""

    def note(self, text: str) -> None:
        """Ignore a sentence."""

    def start(self, name: str, total: int, done: int) -> None:
        """Begin a piece of work."""
        self._name = name
        self.seconds[name], self.waiting[name] = -time.perf_counter(), -self._waited()

    def step(self, done: int, losses: Mapping[str, float]) -> None:
        """Ignore a step."""

    def finish(self) -> None:
        """End the piece of work."""
        self.seconds[self._name] += time.perf_counter()
        self.waiting[self._name] += self._waited()

    def _waited(self) -> float:
        return sum(each.seconds_waiting for each in CountedFeed.all)


def measured(source: Path) -> dict[str, Any]:
    """Learn the images in a folder and return what it took, this whole process included."""
    clock = Clock()
    settings = {"base.training.epochs": 1, "base.training.batch": BATCH, "base.contrastive": 0.0}
    network = nn.Sequential(nn.AvgPool2d(SIDE // 32), backbones.build("resnet8", generator=torch.Generator()))
    began = time.perf_counter()
    with mock.patch.object(feed, "StreamedFeed", CountedFeed):
        record = Learner(network, settings=settings, device="cpu", progress=clock).fit(source, stream=True)
    seconds = time.perf_counter() - began
    training = clock.seconds["the base stage"]
    return {
        "images_per_s": record.images / training,
        "training_s": training,
        "waiting_s": clock.waiting["the base stage"],
        "checking_s": clock.seconds["reading images"],
        "seconds": seconds,
        "peak_mb": _peak_bytes() / MEGABYTE,
    }


def _peak_bytes() -> int:
    """Most memory that this process, its threads included, ever held."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def _in_a_process_of_its_own(options: argparse.Namespace, form: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--work", str(options.work), "--measure", form]
    with tempfile.TemporaryDirectory(dir=options.work) as cache:
        environment = {**os.environ, "INLAY_CACHE": cache}
        shown = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table("form")
    for heading in ("images/s", "training s", "waiting s", "checking s", "peak MB"):
        table.add_column(heading, justify="right")
    for row in rows:
        figures = (row[key] for key in ("images_per_s", "training_s", "waiting_s", "checking_s", "peak_mb"))
        table.add_row(row["form"], *(f"{figure:,.0f}" for figure in figures))
    Console().print(table)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
