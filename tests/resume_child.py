"""Lives of one run: each goes on with a base stage and two discovery stages, and is killed at its moment.

    python resume_child.py FOLDER LIVES

LIVES is JSON: for each life the seconds between its checkpoints and its moment, null for a life to the end. A moment
is the number of a stage and what happens there: "0 step 7" (the optimiser has taken step 7), "1 write FILE" (half of
the file is written; the checkpoint of step 7 is "001-training.safetensors@7"), "1 merge 4" (the fourth unit is about
to be merged), "2 clear" (the stage is listed, its progress not yet dropped).

Each life is a process forked before any computation, because importing takes longer than living.
"""

import io
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # every optimiser imports it on first use, which takes longer than the training here
from sklearn.datasets import load_digits

from inlay import Learner
from inlay.branches import HybridUnit
from inlay.data import ImageSet
from inlay.engine import checkpoint
from inlay.engine.batch import Batch
from inlay.engine.loop import Loop
from inlay.run_folder import RunFolder

BACKBONE = "resnet8"
IMAGES_PER_CLASS = 32
CLASSES = (range(0, 4), range(4, 6), range(6, 8))
SETTINGS: dict[str, Any] = {
    "base.training.epochs": 5,
    "base.training.batch": 32,
    "base.view": "glyph",
    "base.contrastive": 0.1,
    "base.contrastive_view": "glyph",
    "training.epochs": 4,
    "training.batch": 16,
    "first_view": "glyph",
    "second_view": "glyph",
}
STEPS = (5 * 4, 4 * 4, 4 * 4)
"""Steps of each stage: epochs times whole batches."""


class Moments:
    """Where the run stands, and the one moment at which it ends."""

    def __init__(self, deadly: str | None) -> None:
        self.deadly = deadly
        self.stage = self.step = self.merged_units = 0

    def reached(self, what: str) -> None:
        if f"{self.stage} {what}" == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        take_step, delta, drop_progress = Loop.take_step, HybridUnit.delta, RunFolder._drop_progress
        moments = self

        def watched_take_step(loop: Loop, batch: Batch) -> None:
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

    def written_name(self, temporary: Path) -> str:
        name = temporary.name.removeprefix(".").rsplit(".", 2)[0]
        return f"{name}@{self.step}" if temporary.parent.name == "progress" else name


def digits_of(classes: range) -> ImageSet:
    digits = load_digits()
    chosen = [i for c in classes for i in (digits.target == c).nonzero()[0][:IMAGES_PER_CLASS]]
    images = (digits.images[chosen] * 15).astype("uint8")
    return ImageSet.from_arrays(images, digits.target[chosen].astype(str))


def live(folder: Path, seconds: float, moment: str | None) -> None:
    """Do what is left of the run, up to the moment."""
    moments = Moments(moment)
    moments.watch()
    if RunFolder.exists(folder) and RunFolder.open(folder).stage_count > 0:
        learner = Learner.load(folder, device="cpu", checkpoint_seconds=seconds)
    else:
        learner = Learner(BACKBONE, settings=SETTINGS, seed=3, device="cpu", run=folder, checkpoint_seconds=seconds)
    for stage in range(len(learner.stages), len(CLASSES)):
        moments.stage, moments.step, moments.merged_units = stage, 0, 0
        images = digits_of(CLASSES[stage])
        if stage == 0:
            learner.fit(images)
        else:
            learner.discover(images.without_labels(), classes=len(CLASSES[stage]))


def main(folder: Path, lives: list[tuple[float, str | None]]) -> None:
    torch.set_num_threads(1)
    for seconds, moment in lives:
        process = multiprocessing.get_context("fork").Process(target=live, args=(folder, seconds, moment))
        process.start()
        process.join()
        if process.exitcode != (0 if moment is None else -signal.SIGKILL):
            sys.exit(f"the life with the moment {moment!r} ended with {process.exitcode}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
