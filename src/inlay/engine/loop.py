"""The one training loop: shuffling, schedule, optimiser, checkpoints, progress.

Because every random draw is a function of the step and of the image, a loop that is stopped at any moment and started
again from its checkpoint ends with the same weights: bit for bit on the CPU with as many processes as before, and up to
rounding with another number of them.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from inlay.engine import schedule
from inlay.engine.batch import Batch
from inlay.engine.checkpoint import read_tensors, restore_training_state, training_state, write_tensors
from inlay.engine.feed import Feed, upload
from inlay.engine.host_memory import keep_freed_memory
from inlay.engine.interrupt import InterruptWatch
from inlay.engine.optimizer import optimizer_of
from inlay.engine.order import Order
from inlay.engine.progress import Progress, QuietProgress
from inlay.engine.randomness import derive_seed
from inlay.engine.step import Pace, Stepper, chosen_pace
from inlay.engine.work import Work
from inlay.engine.world import World
from inlay.errors import InlayError, Interrupted, TrainingDivergedError
from inlay.settings import TrainingSettings

__all__ = ["Companions", "Keeping", "Loop", "Timing"]

_SECONDS_BETWEEN_READINGS = 0.5

Companions = Callable[[Tensor, int], Tensor]
"""From images, int64 [B], and the key of a step to the image that each one's second view shows, int64 [B]."""


@dataclass(frozen=True)
class Keeping:
    """Where and how often a loop keeps its state.

    Attributes:
        path: Checkpoint file; None keeps nothing.
        seconds: Time between checkpoints; 0 writes one after every step.
        fingerprint: Identity of the work: data, settings and seed. A checkpoint of other work is refused.
    """

    path: Path | None = None
    seconds: float = 30.0
    fingerprint: str = ""


@dataclass
class Timing:
    """Where the time of a loop went.

    Attributes:
        warm_up_seconds: Up to the moment when the step was compiled and recorded.
        train_seconds: After that moment.
        images: Images seen after it, each counted once per step whatever its views.
        waiting_seconds: Time of those seconds spent waiting for images.
    """

    warm_up_seconds: float = 0.0
    train_seconds: float = 0.0
    images: int = 0
    waiting_seconds: float = 0.0


@dataclass
class Loop:
    """Trains some work over shuffled images.

    Attributes:
        name: What is being trained, for the progress display.
        work: Modules and losses.
        settings: Schedule and optimiser.
        feed: Brings the images to the device.
        seed: Seed of this loop.
        companions: Chooses what the second view of each image shows; None is the image itself.
        keeping: Checkpoints.
        progress: Receiver of news.
        settings_name: Where the settings stand among all settings, for advice.
        last_step: Stop after this step, as a rehearsal does; None goes to the end.
    """

    name: str
    work: Work
    settings: TrainingSettings
    feed: Feed
    seed: int
    companions: Companions | None = None
    keeping: Keeping = field(default_factory=Keeping)
    progress: Progress = field(default_factory=QuietProgress)
    settings_name: str = "training"
    last_step: int | None = None

    def __post_init__(self) -> None:
        trained = [p for p in self.work.parameters() if p.requires_grad]
        if not trained:
            raise ValueError("no parameter has a gradient, so there is nothing to train")
        self.optimizer = optimizer_of(trained, self.settings)
        self.world = World.current()
        self.order = Order(len(self.feed), self.settings.batch, self.seed)
        self._check_shares()
        self.total = self.settings.epochs * self.order.steps
        self.step = 0
        self.timing = Timing()
        self._watch = InterruptWatch()
        self._seconds_before = 0.0
        self._began = self._last_kept = self._last_read = time.monotonic()

    @property
    def pace(self) -> Pace:
        """How steps are taken."""
        images = self.settings.epochs * len(self.feed)
        return chosen_pace(self.settings.pace, self.feed.device, self.total, images, self.world)

    def run(self) -> None:
        """Train from the checkpoint, if there is one, to the end.

        Raises:
            InlayError: If the checkpoint belongs to other work.
            Interrupted: After Ctrl-C, with the state kept.
            TrainingDivergedError: If a loss, or a weight that is to be kept, is no longer finite.
        """
        device = self.feed.device
        if device.type == "cpu":
            keep_freed_memory()
        self._restore()
        self.work.train()
        pace = self.pace
        limit = self.settings.gradient_limit
        self._stepper = Stepper(self.work, self.optimizer, pace, device, self.world, self.settings_name, limit)
        self.progress.start(self.name, self.total, self.step)
        try:
            with self._watch, _fastest_convolutions(), torch.random.fork_rng([device] if device.type == "cuda" else []):
                self._take_steps()
        finally:
            self._stepper.close()
            self.progress.finish()

    def take_step(self, batch: Batch) -> None:
        """Take the next step with a batch."""
        epoch, place = divmod(self.step, self.order.steps)
        if place == 0:
            self.work.begin_epoch(epoch)
        progress = self.step / self.total
        # For networks that draw by themselves, as dropout does.
        torch.manual_seed(derive_seed(self.seed, "network", self.step))
        self._stepper(batch, self.work.weights(progress), self._learning_rate(progress))
        self.step += 1

    def _take_steps(self) -> None:
        last = self.total if self.last_step is None else min(self.total, self.last_step)
        began = self._began = time.monotonic()
        with closing(self._batches()) as batches:
            while self.step < last:
                asked = time.monotonic()
                batch = next(batches)
                self.timing.waiting_seconds += time.monotonic() - asked
                self.take_step(batch)
                if self._stepper.steps_when_ready == 0:
                    self.timing.waiting_seconds = 0.0
                self._read_and_keep()
        if self.feed.device.type == "cuda":
            torch.cuda.synchronize(self.feed.device)
        ready = self._stepper.ready_at or began
        self.timing.warm_up_seconds = ready - began
        self.timing.train_seconds = time.monotonic() - ready
        self.timing.images = self._stepper.steps_when_ready * self.order.batch
        self._check_weights()
        if self.keeping.path is not None and self.last_step is None:
            self._keep()
        if self.world.agree(self._watch.requested)[0]:
            raise self._interrupted()

    def _batches(self) -> Generator[Batch, None, None]:
        """Yield the batches from the present step on."""
        planned: deque[tuple[Tensor, Tensor]] = deque()
        mine = self.world.rows(self.order.batch)
        with closing(self.feed.batches(self._requests(planned))) as images:
            for pixels in images:
                indices, key = planned.popleft()
                own, others = pixels.chunk(2) if self.companions is not None else (pixels, pixels)
                rows = indices if self.world.size == 1 else indices[mine]
                yield Batch(own, others, rows, indices, key)

    def _requests(self, planned: deque[tuple[Tensor, Tensor]]) -> Iterator[Tensor]:
        """Yield which images this process needs in each step; what else the step needs is put into `planned`."""
        mine = self.world.rows(self.order.batch)
        first, device = self.step, self.feed.device
        for epoch in range(first // self.order.steps, self.settings.epochs):
            steps = range(max(first, epoch * self.order.steps), (epoch + 1) * self.order.steps)
            order = self.order.epoch(epoch)[-len(steps) :]
            keys = torch.tensor([derive_seed(self.seed, "step", step) for step in steps])
            # Uploaded together, so that a step waits for nothing.
            for step, indices, *placed in zip(steps, order, upload(order, device), upload(keys, device), strict=True):
                planned.append((placed[0], placed[1]))
                request = indices[mine]
                if self.companions is not None:
                    partners = self.companions(indices, derive_seed(self.seed, "companions", step))
                    request = torch.cat([request, partners[mine]])
                yield request

    def _learning_rate(self, progress: float) -> float:
        if self.settings.schedule == "cosine":
            return self.settings.learning_rate * schedule.cosine(progress, self.settings.warm_up)
        decay = schedule.step_decay(progress, self.settings.decay_at, self.settings.decay_factor)
        return self.settings.learning_rate * decay

    def _read_and_keep(self) -> None:
        now = time.monotonic()
        main = self.world.is_main
        read = now - self._last_read >= _SECONDS_BETWEEN_READINGS or self.feed.device.type == "cpu"
        keep = self.keeping.path is not None and now - self._last_kept >= self.keeping.seconds
        stop, read, keep = self.world.agree(self._watch.requested, main and read, main and keep)
        if read or self.step == self.total:
            self._read(now)
        if stop:
            raise self._interrupted()
        if keep:
            self._keep()

    def _read(self, now: float) -> None:
        values = dict(zip(self._stepper.names, self._stepper.values.tolist(), strict=True))
        for name, value in values.items():
            if not -torch.inf < value < torch.inf:
                raise self._diverged(f"the loss {name!r}")
        if now - self._last_read >= _SECONDS_BETWEEN_READINGS or self.step == self.total:
            self._last_read = now
            self.progress.step(self.step, {"total": sum(values.values()), **values})

    def _check_weights(self) -> None:
        for name, parameter in self.work.named_parameters():
            if parameter.requires_grad and not bool(torch.isfinite(parameter).all()):
                raise self._diverged(f"{name!r}")

    def _keep(self) -> None:
        """Write a checkpoint, unless the state is one that nobody could go on from."""
        assert self.keeping.path is not None
        tensors, facts = training_state(dict(self.work.named_children()), self.optimizer)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise self._diverged(f"{name!r}")
        facts = {
            "training": facts,
            "step": self.step,
            "seconds": self._seconds_before + time.monotonic() - self._began,
            "fingerprint": self.keeping.fingerprint,
        }
        if self.world.is_main:
            write_tensors(self.keeping.path, tensors, facts)
        self._last_kept = time.monotonic()

    def _restore(self) -> None:
        path = self.keeping.path
        # Whether there is one is for the main process to say, as another machine may see a file late.
        if path is None or not self.world.share(path.exists()):
            return
        tensors, facts = read_tensors(path)
        if facts.get("fingerprint") != self.keeping.fingerprint:
            raise InlayError(
                f"{path.parent.parent} holds unfinished work with other images or settings, or from before a review of "
                f"classes; repeat that command to go on with it, or pass --restart to drop it."
            )
        if not all(key in facts for key in ("training", "step", "seconds")):
            raise InlayError(f"{path} is damaged; pass --restart to begin the stage anew.")
        restore_training_state(dict(self.work.named_children()), self.optimizer, tensors, facts["training"])
        self.step, self._seconds_before = int(facts["step"]), float(facts["seconds"])
        if self.step != self.world.share(self.step):
            raise InlayError(
                f"The processes read different states of {path}; put the run folder on a file system that all of them "
                f"share and repeat the command."
            )
        if self.step < self.total:
            self.progress.note(f"Going on with {self.name} at step {self.step} of {self.total}.")

    def _check_shares(self) -> None:
        size = self.world.size
        if self.order.batch % size == 0:
            return
        sizes = range(self.settings.batch, 1, -1)
        fitting = (most for most in sizes if Order(len(self.feed), most, self.seed).batch % size == 0)
        advice = next((f"write --set {self.settings_name}.batch={most} or " for most in fitting), "")
        raise InlayError(
            f"{len(self.feed)} images in batches of {self.order.batch} cannot be shared evenly by {size} processes; "
            f"{advice}use another number of processes."
        )

    def _interrupted(self) -> Interrupted:
        if self.keeping.path is None or self.last_step is not None:
            return Interrupted(
                f"Stopped {self.name} at step {self.step} of {self.total}; nothing was kept: pass run=FOLDER to the "
                f"learner to be able to go on."
            )
        self._keep()
        return Interrupted(
            f"Stopped {self.name} at step {self.step} of {self.total}; repeat the command to go on from there."
        )

    def _diverged(self, what: str) -> TrainingDivergedError:
        kept = self.keeping.path is not None and self.keeping.path.exists()
        state = "the last good state is kept" if kept else "the state before this stage is unchanged"
        return TrainingDivergedError(
            f"{self.name} stopped at step {self.step} of {self.total} because {what} is not finite; {state}; try a "
            f"lower learning rate, such as "
            f"--set {self.settings_name}.learning_rate={self.settings.learning_rate / 10:g} --restart."
        )


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms once for each shape; all batches have one shape, so that pays."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
