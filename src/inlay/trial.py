"""A trial: a few real steps of a stage are taken and measured, and nothing is kept."""

import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from inlay import backbones, branches
from inlay.data.images import Images
from inlay.engine.feed import Feed, ResidentFeed, feed_of
from inlay.engine.inference import features_of
from inlay.engine.loop import Keeping, Loop, Timing
from inlay.engine.passes import Precision, pass_views
from inlay.engine.world import World
from inlay.errors import InlayError, Interrupted
from inlay.exemplars import Exemplars
from inlay.knowledge import Knowledge
from inlay.methods import method
from inlay.pipeline import Workshop, learn_base, learn_labelled, learn_stage
from inlay.rehearsal import Place, Rehearsal, StageKind
from inlay.settings import Settings

__all__ = ["rehearse_base", "rehearse_labelled", "rehearse_stage"]

# A recorded step is ready after the fourth.
_WARM_UP_STEPS = 3
_FEWEST_STEPS = 5
_SECONDS = 2.0
_FEWEST_IMAGES = 8

_Describe = Callable[[Images], Tensor]


def rehearse_base(
    images: Images,
    backbone: str | nn.Module,
    settings: Settings,
    seed: int,
    device: torch.device,
    stopped: Path | None = None,
) -> Rehearsal:
    """Take a few steps of a base stage.

    Args:
        images: As for `inlay.pipeline.learn_base`, like the three that follow.
        backbone: Name or module, which is not changed.
        settings: All settings of the run.
        seed: Seed of the run.
        device: Where it is computed.
        stopped: Checkpoint of a stopped try at the stage, which is read and not changed.

    Raises:
        InlayError: As for `inlay.pipeline.learn_base`, and if the checkpoint belongs to other work.
    """

    def learn(workshop: Workshop) -> None:
        learn_base(images, backbone, settings, seed, workshop)

    def describing() -> _Describe:
        network = backbones.begin(backbone, images.channels, images.size, torch.Generator()).network.eval()
        folded = branches.fold(network, torch.zeros(1, images.channels, *images.size))
        folded.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return lambda some: features_of(folded, feed_of(some.pixels, device), lambda pixels: pixels.float() / 255)

    return _rehearsed(learn, describing, images, "base", 0, len(images.class_names), device, stopped)


def rehearse_stage(
    knowledge: Knowledge,
    images: Images,
    classes: int,
    settings: Settings,
    device: torch.device,
    stopped: Path | None = None,
) -> Rehearsal:
    """Take a few steps of a discovery stage.

    Args:
        knowledge: What is known; it is not changed.
        images: Unlabelled images.
        classes: Number of new classes.
        settings: All settings of the stage.
        device: Where it is computed.
        stopped: Checkpoint of a stopped try at the stage, which is read and not changed.

    Raises:
        InlayError: As for `inlay.pipeline.learn_stage`, and if the method trains nothing or the checkpoint belongs to
            other work.
    """
    if not method(settings.method).terms:
        raise InlayError(
            f"The method {settings.method!r} trains nothing, so there is nothing to rehearse; run it without --dry-run."
        )

    def learn(workshop: Workshop) -> None:
        learn_stage(knowledge, images, classes, settings, workshop)

    number = knowledge.record.index + 1
    return _rehearsed(learn, lambda: knowledge.features, images, "discovery", number, classes, device, stopped)


def rehearse_labelled(
    knowledge: Knowledge,
    images: Images,
    settings: Settings,
    device: torch.device,
    stopped: Path | None = None,
    exemplars: Exemplars | None = None,
) -> Rehearsal:
    """Take a few steps of a stage of labelled new classes.

    Args:
        knowledge: What is known; it is not changed.
        images: Labelled images of new classes.
        settings: All settings of the stage.
        device: Where it is computed.
        stopped: Checkpoint of a stopped try at the stage, which is read and not changed.
        exemplars: Images of old classes that were kept.

    Raises:
        InlayError: As for `inlay.pipeline.learn_labelled`, and if the checkpoint belongs to other work.
    """

    def learn(workshop: Workshop) -> None:
        learn_labelled(knowledge, images, settings, workshop, exemplars)

    number = knowledge.record.index + 1
    classes = len(images.class_names)
    return _rehearsed(learn, lambda: knowledge.features, images, "labelled", number, classes, device, stopped)


class _Measured(Exception):
    """The way out of a stage that shall not be finished; no error."""

    def __init__(
        self, loop: Loop, steps_done: int = 0, began: float = 0.0, warm_up: float = 0.0, step: float = 0.0
    ) -> None:
        self.loop = loop
        self.steps_done = steps_done
        self.began, self.warm_up, self.step = began, warm_up, step


@dataclass(frozen=True)
class _RehearsalWorkshop(Workshop):
    """Measures the loop of a stage instead of handing it out."""

    def made(self, loop: Loop) -> None:
        raise _measured(loop) if loop.total else _Measured(loop, began=time.monotonic())


def _rehearsed(
    learn: Callable[[Workshop], None],
    describing: Callable[[], _Describe],
    images: Images,
    kind: StageKind,
    stage: int,
    classes: int,
    device: torch.device,
    stopped: Path | None,
) -> Rehearsal:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.monotonic()
    try:
        measured = _first_loop(learn, _RehearsalWorkshop(device, checkpoint=stopped))
        image_seconds = None if measured.loop.total else _image_seconds(describing(), images)
    except (Interrupted, KeyboardInterrupt) as stop:
        raise Interrupted("Stopped the rehearsal; nothing was written.") from stop
    loop = measured.loop
    return Rehearsal(
        stage=stage,
        kind=kind,
        images=len(images),
        shape=loop.feed.shape,
        classes=classes,
        epochs=loop.settings.epochs,
        batch=loop.order.batch,
        processes=loop.world.size,
        steps=loop.total,
        steps_done=measured.steps_done,
        pace=loop.pace,
        precision=_precision(loop.settings.precision, loop.feed),
        device=str(device),
        place=_place(images, loop.feed),
        peak_bytes=_peak_bytes(device),
        preparation_seconds=measured.began - began,
        warm_up_seconds=measured.warm_up,
        step_seconds=measured.step,
        image_seconds=image_seconds,
    )


def _first_loop(learn: Callable[[Workshop], None], workshop: Workshop) -> _Measured:
    try:
        learn(workshop)
    except _Measured as measured:
        return measured
    raise AssertionError("a stage always makes a loop")


def _measured(loop: Loop) -> _Measured:
    began = time.monotonic()
    # A loop that may take no step reads its checkpoint and refuses one of other work; after that it has none to write.
    loop.last_step = 0
    loop.run()
    steps_done = loop.step
    loop.keeping = Keeping()
    first = _timed(loop, _WARM_UP_STEPS + _FEWEST_STEPS)
    step = _step_seconds(loop, first)
    # All processes must take the same number of steps.
    steps = loop.world.share(math.ceil((_SECONDS - first.train_seconds) / step))
    if steps > 0:
        step = _step_seconds(loop, _timed(loop, _WARM_UP_STEPS + max(_FEWEST_STEPS, steps)))
    return _Measured(loop, steps_done, began, first.warm_up_seconds, step)


def _image_seconds(describe: _Describe, images: Images) -> float:
    """Measure how long an image takes through a network, on images twice as many until they take long enough."""
    count = min(_FEWEST_IMAGES, len(images))
    describe(images.select(torch.arange(count)))
    while True:
        began = time.monotonic()
        # Reading a value waits for the device.
        float(describe(images.select(torch.arange(count))).sum())
        seconds = time.monotonic() - began
        # All processes must look at the same images.
        if World.current().share(seconds >= _SECONDS or count == len(images)):
            return seconds / count
        count = min(2 * count, len(images))


def _timed(loop: Loop, steps: int) -> Timing:
    """Take the first steps of a loop, or all if there are fewer."""
    loop.step, loop.last_step, loop.timing = 0, steps, Timing()
    loop.run()
    return loop.timing


def _step_seconds(loop: Loop, timing: Timing) -> float:
    steps = timing.images // loop.order.batch
    # So short a training is over before steps have their pace.
    return timing.train_seconds / steps if steps else timing.warm_up_seconds / loop.step


def _place(images: Images, feed: Feed) -> Place:
    if not isinstance(images.pixels, Tensor):
        return "decoded from disk while training"
    return "on the device" if isinstance(feed, ResidentFeed) and feed.device.type == "cuda" else "in host memory"


class _PrecisionProbe(nn.Module):
    """Stands in for a network and sees in which precision it is asked to compute."""

    mixed = False

    def forward(self, images: Tensor) -> Tensor:
        self.mixed = torch.is_autocast_enabled(images.device.type)
        return images.flatten(1)


def _precision(wished: Precision, feed: Feed) -> Literal["float32", "bfloat16"]:
    probe = _PrecisionProbe()
    pass_views(probe, (torch.zeros(1, *feed.shape, device=feed.device),), wished)
    return "bfloat16" if probe.mixed else "float32"


def _peak_bytes(device: torch.device) -> int:
    """Return the most memory that any process has taken."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:
        # Linux counts in kilobytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return int(World.current().collect(torch.full((1,), peak, dtype=torch.int64)).max())
