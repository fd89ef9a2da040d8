"""Lives of runs: each goes on with a base stage and discovery stages, and is killed at its moment.

    python resume_child.py FOLDER RUNS

RUNS is JSON: for each run, by its name in the folder, the fields of its lives in order. Each process of a life is
forked from one that has imported everything and computed nothing, because importing takes longer than living.
"""

import functools
import importlib
import io
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.optim.optimizer import register_optimizer_step_pre_hook

from inlay import Learner
from inlay.branches import HybridUnit
from inlay.data import ImageSet
from inlay.engine import checkpoint
from inlay.engine.batch import Batch
from inlay.engine.checkpoint import JsonObject
from inlay.engine.loop import Loop
from inlay.engine.world import World
from inlay.methods import method
from inlay.run_folder import RunFolder
from inlay.settings import preset as settings_of

BACKBONE = "resnet8"
IMAGES_PER_CLASS = 32
CLASSES = (range(0, 4), range(4, 6), range(6, 8))
SETTINGS: dict[str, Any] = {
    "base.training.epochs": 4,
    "base.training.batch": 32,
    "base.view": "glyph",
    "base.contrastive": 0.1,
    "base.contrastive_view": "glyph",
    "training.epochs": 3,
    "training.batch": 16,
    "first_view": "glyph",
    "second_view": "glyph",
    "classifier.refit_per_class": 100,
    "classifier.refit_decay": 0.01,
}
STEPS = (4 * 4, 3 * 4, 3 * 4)
"""Steps of each stage: epochs times whole batches."""
NEVER = 3600.0
"""Seconds between checkpoints that no life reaches."""
FILES = "images"
"""Folder of the image files, beside the runs."""

_SECONDS_OF_A_LIFE = 120.0
_SECONDS_OF_ALL_LIVES = 600.0


class Life(NamedTuple):
    """A process, or a group of them, that goes on with a run.

    Attributes:
        seconds: Time between checkpoints.
        moment: Number of a stage and what happens there; None is a life to the end. "0 gradient 7": the optimiser is
            about to take step 7; "0 step 7": it has taken it; "1 write FILE": half of the file is written, where the
            checkpoint of step 7 is "001-training.safetensors@7"; "1 merge 4": the fourth unit is about to be merged;
            "2 clear": the stage is listed, its progress not yet dropped.
        processes: Number of processes.
        rank: The process that kills itself at the moment.
        others: What happens to the others of the group then: "killed", as if the machine went down, or "asked" to end
            by SIGTERM, as launchers do.
        images: "arrays" in memory, or files that are "decoded" before the training or "streamed" during it.
        preset: Preset of the run, the same in all of its lives.
        metric: Metric of its prototypes, the same in all of its lives.
    """

    seconds: float = NEVER
    moment: str | None = None
    processes: int = 1
    rank: int = 0
    others: Literal["killed", "asked"] = "killed"
    images: Literal["arrays", "decoded", "streamed"] = "arrays"
    preset: str = "inlay"
    metric: Literal["known", "plain"] = "known"

    @property
    def stages(self) -> int:
        """Number of stages of the run: none can follow one without a joint head."""
        return len(CLASSES) if method(settings_of(self.preset).method).joint else 2


class Moments:
    """Where the run stands, and the one moment at which it ends."""

    def __init__(self, deadly: str | None, died: Event) -> None:
        self.deadly = deadly
        self.died = died
        self.stage = self.step = self.merged_units = 0

    def reached(self, what: str) -> None:
        if f"{self.stage} {what}" == self.deadly:
            self.died.set()
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        take_step, delta, drop_progress = Loop.take_step, HybridUnit.delta, RunFolder._drop_progress
        moments = self

        def watched_take_step(loop: Loop, batch: Batch) -> None:
            self.step = loop.step
            take_step(loop, batch)
            self.step = loop.step
            self.reached(f"step {loop.step}")

        def watched_delta(unit: HybridUnit) -> Any:
            self.merged_units += 1
            self.reached(f"merge {self.merged_units}")
            return delta(unit)

        def watched_drop_progress(folder: RunFolder) -> None:
            self.reached("clear")
            drop_progress(folder)

        class HalvingFile(io.FileIO):
            def write(self, content: Any) -> int:
                half = super().write(content[: len(content) // 2])
                moments.reached(f"write {moments.written_name(Path(str(self.name)))}")
                return half + super().write(content[half:])

        # Through vars, as a type checker refuses to see methods replaced.
        vars(checkpoint)["open"] = HalvingFile
        for owner, name, watched in (
            (Loop, "take_step", watched_take_step),
            (HybridUnit, "delta", watched_delta),
            (RunFolder, "_drop_progress", watched_drop_progress),
        ):
            setattr(owner, name, watched)
        register_optimizer_step_pre_hook(lambda *_: self.reached(f"gradient {self.step + 1}"))

    def written_name(self, temporary: Path) -> str:
        name = temporary.name.removeprefix(".").rsplit(".", 2)[0]
        return f"{name}@{self.step}" if temporary.parent.name == "progress" else name


@functools.cache
def _digits(stage: int) -> tuple[Any, Any]:
    """Images uint8 [N, 8, 8] and their digits."""
    digits = load_digits()
    chosen = [i for c in CLASSES[stage] for i in (digits.target == c).nonzero()[0][:IMAGES_PER_CLASS]]
    return (digits.images[chosen] * 15).astype(np.uint8), digits.target[chosen].astype(str)


def write_files(folder: Path) -> None:
    """Write the images of all stages as files, those of the base stage in a folder for each class."""
    for stage in range(len(CLASSES)):
        for number, (image, digit) in enumerate(zip(*_digits(stage), strict=True)):
            place = folder / str(stage) / (digit if stage == 0 else "")
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{number:03d}.png")


def live(folder: Path, life: Life, moments: Moments) -> None:
    """Do what is left of the run, up to the deadly moment."""
    moments.watch()
    if RunFolder.exists(folder) and RunFolder.open(folder).stage_count > 0:
        learner = Learner.load(folder, device="cpu", checkpoint_seconds=life.seconds)
    else:
        learner = Learner(
            BACKBONE,
            preset=life.preset,
            settings={**SETTINGS, "assignment.metric": life.metric},
            seed=3,
            device="cpu",
            run=folder,
            checkpoint_seconds=life.seconds,
        )
    stream = life.images == "streamed"
    for stage in range(len(learner.stages), life.stages):
        moments.stage, moments.step, moments.merged_units = stage, 0, 0
        arrays = ImageSet.from_arrays(*_digits(stage))
        images = arrays if life.images == "arrays" else folder.with_name(FILES) / str(stage)
        if stage == 0:
            learner.fit(images, stream=stream)
        else:
            classes = len(CLASSES[stage])
            learner.discover(arrays.without_labels() if images is arrays else images, classes, stream=stream)


def _live_in_group(folder: Path, life: Life, rank: int, port: int, died: Event) -> None:
    """Live as the process that torchrun would have started with this rank."""
    if life.processes > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(life.processes),
            "LOCAL_WORLD_SIZE": str(life.processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    assert World.current().size == life.processes
    live(folder, life, Moments(life.moment if rank == life.rank else None, died))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _live_once(folder: Path, life: Life) -> None:
    """Live, and make sure that the life has ended as it was meant to."""
    fork = multiprocessing.get_context("fork")
    port, died = _free_port(), fork.Event()
    group = [
        fork.Process(target=_live_in_group, args=(folder, life, rank, port, died), daemon=True)
        for rank in range(life.processes)
    ]
    try:
        for process in group:
            process.start()
        _wait_for(group, life)
    finally:
        for process in group:
            process.kill()
    codes = [process.exitcode for process in group]
    as_meant = died.is_set() and 0 not in codes if life.moment else not any(codes)
    if not as_meant:
        sys.exit(f"{life} of {folder.name} ended with {codes}")


def _wait_for(group: Sequence[ForkProcess], life: Life) -> None:
    """Wait until all have ended; when one of them fails, do to the others what the life says."""
    until = time.monotonic() + _SECONDS_OF_A_LIFE
    living = list(group)
    while living:
        if not connection.wait([process.sentinel for process in living], until - time.monotonic()):
            sys.exit(f"{life} hangs")
        for process in [process for process in living if process.exitcode is not None]:
            living.remove(process)
            for other in living if process.exitcode != 0 else ():
                other.kill() if life.others == "killed" else other.terminate()


def main(folder: Path, runs: Mapping[str, Sequence[Life]]) -> None:
    torch.set_num_threads(1)
    # Every optimiser imports it on first use, which takes longer than the training here.
    importlib.import_module("torch._dynamo")
    if any(life.images != "arrays" for lives in runs.values() for life in lives):
        write_files(folder / FILES)
    for name, lives in runs.items():
        for life in lives:
            _live_once(folder / name, life)


def launch(folder: Path, runs: Mapping[str, Sequence[Life]]) -> None:
    """Live all lives of some runs in folders of their names; no process outlives the call."""
    command = [sys.executable, __file__, str(folder), json.dumps(runs)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as lives:
        try:
            _, errors = lives.communicate(timeout=_SECONDS_OF_ALL_LIVES)
        except BaseException:
            os.killpg(lives.pid, signal.SIGKILL)
            raise
    assert lives.returncode == 0, errors


def differences(wanted: Path, found: Path, stages: int = len(CLASSES)) -> list[str]:
    """Name what differs between two finished runs, bit by bit, other than the time they took."""
    first, second = RunFolder.open(wanted), RunFolder.open(found)
    assert first.stage_count == second.stage_count == stages
    different = []
    for stage in range(stages):
        (tensors, facts), (other_tensors, other_facts) = first.read(stage), second.read(stage)
        assert tensors.keys() == other_tensors.keys()
        different += [f"{stage} {name}" for name in tensors if not torch.equal(tensors[name], other_tensors[name])]
        if _without_time(facts) != _without_time(other_facts):
            different.append(f"{stage} facts")
    return different


def _without_time(facts: JsonObject) -> JsonObject:
    return {**facts, "stage": {key: value for key, value in facts["stage"].items() if key != "seconds"}}


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        {name: [Life(*fields) for fields in lives] for name, lives in json.loads(sys.argv[2]).items()},
    )
