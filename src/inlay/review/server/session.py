"""One review of the latest stage of a run: what was decided so far, and what is decided next."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from inlay import decisions
from inlay.decided import decided, keep_decisions, kept_decisions
from inlay.decisions import Undo
from inlay.discovery.kmeans import kmeans
from inlay.engine.progress import Progress
from inlay.engine.randomness import generator
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from inlay.review.server.images import StageImages
from inlay.review.stage import DecidedStage, find_images
from inlay.run_folder import RunFolder

__all__ = ["OutdatedError", "Session", "open_session"]

MOST_PARTS = 10
"""Parts that a class can be split into at once."""


class OutdatedError(InlayError):
    """A decision was taken in view of classes that have changed since."""


class Session(DecidedStage):
    """The decisions about a stage, each written down before it is shown.

    Args:
        run: The run, locked for as long as the session lives.
        knowledge: What the latest stage itself left behind.
        images: The images of the stage.
        features: Their features, [N, D] on the CPU; NaN for those that are not there.

    Attributes:
        run: The run.
        lock: Held while a decision is followed; hold it to read what belongs together.
    """

    def __init__(self, run: RunFolder, knowledge: Knowledge, images: StageImages, features: Tensor) -> None:
        super().__init__(knowledge, decided(run, knowledge), kept_decisions(run, knowledge), images, features)
        self.run = run
        self.lock = threading.RLock()

    @property
    def revision(self) -> int:
        """Number of decisions so far, those to undo others among them."""
        return len(self.taken)

    @property
    def can_undo(self) -> bool:
        """Whether a decision stands that could be taken back."""
        undone = sum(isinstance(decision, Undo) for decision in self.taken)
        return len(self.taken) > 2 * undone

    def decide(self, wanted: object, revision: object) -> None:
        """Follow a decision and write it down.

        Args:
            wanted: The decision as `inlay.decisions.to_json` writes it; a split may have "parts", a number of groups
                to find, instead of "labels". The time is that of this call.
            revision: Number of decisions that the person who decides has seen.

        Raises:
            OutdatedError: If there are others by now.
            InlayError: If the decision is not possible or cannot be written; everything stays as it was then.
        """
        with self.lock:
            if revision != self.revision:
                raise OutdatedError(
                    "The classes were changed on another page meanwhile; look at them and decide again."
                )
            decision = decisions.from_json(self._completed(wanted))
            taken = [*self.taken, decision]
            outcome = decisions.replay(self.before, taken, self._features_of_class)
            if outcome.registry.history == self.after.registry.history:
                return
            keep_decisions(self.run, self.before, taken, outcome)
            self.follow(taken, outcome)

    def _features_of_class(self, id: int) -> Tensor:
        images = self.first_members.get(id)
        if images is None:
            raise InlayError(
                f"{self._named(id)} was not found in stage {self.stage}, whose images are shown, so nothing that it is "
                f"part of can be split; merge or rename it instead."
            )
        features = self.features[list(images)]
        if features.isnan().any():
            raise InlayError(
                f"{self._named(id)} cannot be split, as not all of its images were found; start `inlay review` with "
                f"--images and the folder that has them."
            )
        return features

    def _named(self, id: int) -> str:
        # The page shows names, not ids.
        return f"The class {self.after.registry.names[id]!r}"

    def _completed(self, wanted: object) -> object:
        """Add the time, and the labels of a split that only has a number of parts."""
        if not isinstance(wanted, Mapping):
            return wanted
        filled = {**wanted, "when": datetime.now(UTC).isoformat(timespec="seconds")}
        if filled.get("decision") == "split" and "parts" in filled:
            filled["labels"] = self._labels(filled.get("id"), filled.pop("parts"))
        return filled

    def _labels(self, id: object, parts: object) -> list[int]:
        if isinstance(parts, bool) or not isinstance(parts, int) or not 2 <= parts <= MOST_PARTS:
            raise InlayError(f"A class can be split into 2 to {MOST_PARTS} parts; write a number of parts.")
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < len(self.after.registry):
            raise InlayError(f"There is no such class to split; write an id from 0 to {len(self.after.registry) - 1}.")
        if not self.may_split(id) or parts >= len(self.members[id]):
            raise InlayError(
                f"{self._named(id)} cannot be split into {parts} parts; it needs more images than that, all of them "
                f"found in the folder of the stage."
            )
        chosen = generator(self.before.seed, "split", self.revision)
        return kmeans(self.features[list(self.members[id])], parts, chosen).labels.tolist()


@contextmanager
def open_session(run: Path, images: str | None, device: torch.device, progress: Progress) -> Iterator[Session]:
    """Open the latest stage of a run for review, and keep other processes from writing to the run meanwhile.

    Args:
        run: Folder of the run.
        images: Anything that `inlay.data.load` reads, the images of the stage among them; None looks where they were.
        device: Where to compute.
        progress: Receiver of news.

    Raises:
        InlayError: If there is no such run, another process is writing to it, its latest stage has no discovered
            classes, or the images are not found.
    """
    folder = RunFolder.open(run)
    with folder.lock():
        knowledge = Knowledge.from_files(*folder.read(), device)
        if knowledge.record.kind == "base":
            raise InlayError(f"{run} has no discovered classes yet; find some with `inlay discover {run} IMAGES`.")
        yield Session(folder, knowledge, *find_images(knowledge, images, progress))
