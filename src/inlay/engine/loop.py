"""The one training loop: shuffling, schedule, optimiser, checkpoints, progress.

A loop is iterated for its batches and told the losses of each:

    with loop:
        for batch in loop:
            loop.update(losses(batch))

Because every random draw is a function of the step, a loop that is stopped at any moment and started again
from its checkpoint ends with the same weights, bit for bit on one CPU.
"""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor, nn

from inlay.engine import schedule
from inlay.engine.checkpoint import read_tensors, restore_training_state, training_state, write_tensors
from inlay.engine.interrupt import InterruptWatch
from inlay.engine.progress import Progress, QuietProgress
from inlay.engine.randomness import generator
from inlay.errors import InlayError, Interrupted, TrainingDivergedError
from inlay.settings import TrainingSettings

__all__ = ["Batch", "Keeping", "Loop"]

_SECONDS_BETWEEN_READINGS = 0.5


@dataclass(frozen=True)
class Batch:
    """One step's work.

    Attributes:
        indices: Which images, [B].
        step: Number of the step, from 0.
        progress: Fraction of the training that is done.
        generator: Randomness of this step, on the device of the loop.
    """

    indices: Tensor
    step: int
    progress: float
    generator: torch.Generator


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
class Loop:
    """Trains modules over shuffled indices.

    Attributes:
        name: What is being trained, for the progress display.
        modules: Everything whose state belongs to the training, by name; parameters with gradients are trained.
        settings: Schedule and optimiser.
        images: Number of images to go through per epoch.
        seed: Seed of this loop.
        device: Where batches are drawn.
        keeping: Checkpoints.
        progress: Receiver of news.
        settings_name: Where the settings stand among all settings, for advice.
    """

    name: str
    modules: Mapping[str, nn.Module]
    settings: TrainingSettings
    images: int
    seed: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    keeping: Keeping = field(default_factory=Keeping)
    progress: Progress = field(default_factory=QuietProgress)
    settings_name: str = "training"

    def __post_init__(self) -> None:
        trained = [p for module in self.modules.values() for p in module.parameters() if p.requires_grad]
        if not trained:
            raise ValueError("no parameter has a gradient, so there is nothing to train")
        self.optimizer = torch.optim.SGD(
            trained,
            lr=self.settings.learning_rate,
            momentum=self.settings.momentum,
            weight_decay=self.settings.weight_decay,
            nesterov=self.settings.nesterov and self.settings.momentum > 0,
        )
        self.steps_per_epoch = math.ceil(self.images / self.settings.batch)
        self.total = self.settings.epochs * self.steps_per_epoch
        self.step = 0
        self._watch = InterruptWatch()
        self._losses: dict[str, Tensor] = {}
        self._seconds_before = 0.0
        self._began = self._last_kept = self._last_read = time.monotonic()

    def __enter__(self) -> "Loop":
        """Restore the checkpoint, if there is one, and begin.

        Raises:
            InlayError: If the checkpoint belongs to other work.
        """
        self._restore()
        for module in self.modules.values():
            module.train()
        self.progress.start(self.name, self.total, self.step)
        self._watch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.__exit__(kind, error, trace)
        self.progress.finish()

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches that are left; `update` must be called once for each.

        Raises:
            Interrupted: After Ctrl-C, with the state kept.
            TrainingDivergedError: If a loss or a weight is no longer finite.
        """
        while self.step < self.total:
            expected = self.step + 1
            yield self._batch()
            if self.step != expected:
                raise RuntimeError("update must be called once for each batch")
            self._read_and_keep()
        if self.keeping.path is not None:
            self._keep()
        if self._watch.requested:
            raise self._interrupted()

    def update(self, losses: Mapping[str, Tensor]) -> None:
        """Take one optimiser step down the sum of the losses.

        Args:
            losses: Weighted scalars by name.
        """
        total = torch.stack(list(losses.values())).sum()
        self._losses = {"total": total.detach(), **{name: loss.detach() for name, loss in losses.items()}}
        if self.device.type == "cpu":
            self._check_loss()
        rate = self._learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1

    def _batch(self) -> Batch:
        epoch, position = divmod(self.step, self.steps_per_epoch)
        if position == 0 or not hasattr(self, "_order"):
            order = torch.randperm(self.images, generator=generator(self.seed, "order", epoch))
            self._order = order.to(self.device)
        # Batches of equal size, give or take one, so that every image is seen once in each epoch.
        first, last = (self.images * place // self.steps_per_epoch for place in (position, position + 1))
        return Batch(
            indices=self._order[first:last],
            step=self.step,
            progress=self.step / self.total,
            generator=generator(self.seed, "step", self.step, device=self.device),
        )

    def _learning_rate(self) -> float:
        progress = self.step / self.total
        if self.settings.schedule == "cosine":
            return self.settings.learning_rate * schedule.cosine(progress)
        return self.settings.learning_rate * schedule.step_decay(progress, self.settings.decay_at)

    def _read_and_keep(self) -> None:
        now = time.monotonic()
        if now - self._last_read >= _SECONDS_BETWEEN_READINGS or self.step == self.total:
            self._last_read = now
            self._check_loss()
            self.progress.step(self.step, {name: loss.item() for name, loss in self._losses.items()})
        if self._watch.requested:
            raise self._interrupted()
        if self.keeping.path is not None and now - self._last_kept >= self.keeping.seconds:
            self._keep()

    def _check_loss(self) -> None:
        for name, loss in self._losses.items():
            if not bool(torch.isfinite(loss)):
                raise self._diverged(f"the loss {name!r}")

    def _keep(self) -> None:
        """Write a checkpoint, unless the state is one that nobody could go on from."""
        assert self.keeping.path is not None
        tensors, facts = training_state(self.modules, self.optimizer)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise self._diverged(f"{name!r}")
        facts = {
            "training": facts,
            "step": self.step,
            "seconds": self._seconds_before + time.monotonic() - self._began,
            "fingerprint": self.keeping.fingerprint,
        }
        write_tensors(self.keeping.path, tensors, facts)
        self._last_kept = time.monotonic()

    def _restore(self) -> None:
        path = self.keeping.path
        if path is None or not path.exists():
            return
        tensors, facts = read_tensors(path)
        if facts.get("fingerprint") != self.keeping.fingerprint:
            raise InlayError(
                f"{path.parent.parent} holds unfinished work with other images or settings; repeat that command to "
                f"go on with it, or pass --restart to drop it."
            )
        if not all(key in facts for key in ("training", "step", "seconds")):
            raise InlayError(f"{path} is damaged; pass --restart to begin the stage anew.")
        restore_training_state(self.modules, self.optimizer, tensors, facts["training"])
        self.step, self._seconds_before = int(facts["step"]), float(facts["seconds"])
        if self.step < self.total:
            self.progress.note(f"Going on with {self.name} at step {self.step} of {self.total}.")

    def _interrupted(self) -> Interrupted:
        if self.keeping.path is None:
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
