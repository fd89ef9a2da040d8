"""A stage of labelled new classes: keep some images out, learn the others, and see what was forgotten."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.data.images import Images
from inlay.discovering import accepted
from inlay.errors import InlayError
from inlay.exemplars import Exemplars, exemplar_folder, keep_exemplars, kept_exemplars
from inlay.knowledge import Knowledge, StageRecord
from inlay.medoids import place_of
from inlay.pipeline import Workshop, labelled_identity, learn_labelled
from inlay.rehearsal import Rehearsal
from inlay.requirements import check_continues, check_known, check_labelled, check_max_forgetting
from inlay.selftest import FEWEST_HELD_OUT, held_out_images
from inlay.settings import Settings
from inlay.trained_model import TrainedModel
from inlay.trial import rehearse_labelled

__all__ = ["LabelledLearning"]


class LabelledLearning(TrainedModel, ABC):
    """What a learner does with labelled images of new classes.

    Attributes:
        settings: Settings of the next stage.
        seed: Seed of everything random.
        device: Where it is computed.
    """

    settings: Settings
    seed: int
    device: torch.device

    def learn(
        self,
        labelled: Any,
        *,
        held_out: float = 0.0,
        max_forgetting: float | None = None,
        exemplars: int = 0,
        skip_bad: bool = False,
        stream: bool | None = None,
    ) -> StageRecord:
        """Learn new classes that come with labels: train branches and merge them.

        No image of an old class is needed; those that were kept as exemplars are learned again.

        Args:
            labelled: Labelled images of new classes, a few of each are enough: anything that `inlay.data.load` reads.
            held_out: Share of each class that is kept out of training, so that the accuracy on it can be told.
            max_forgetting: Refuse the stage if the accuracy on old classes would fall by more than this, 0 to 1.
            exemplars: Images of each new class to keep beside the run folder, for later stages of this kind.
            skip_bad: Leave unreadable images out instead of refusing them.
            stream: Decode image files while training, as for `fit`.

        Raises:
            InlayError: If the images are not fit for it, or a class is known already; what was learned before is
                unchanged.
        """
        check_max_forgetting(max_forgetting)
        images, apart = self._new_images(labelled, held_out, skip_bad, stream)
        trained = images.select(~apart) if bool(apart.any()) else images
        assert trained.labels is not None
        self._check_exemplars(exemplars)
        with self._history.locked():
            done = self._learned_in(trained)
            if done is not None:
                self.progress.note(f"These images were learned in stage {done} already; nothing was done.")
                record = self._history.take_over(done)
            else:
                check_known(trained, self.classes)
                before, workshop = self.knowledge, self._workshop()
                kept = self._kept()
                after = learn_labelled(before, trained, self.settings, workshop, kept, place_of(labelled))
                told = {} if kept is None else {"exemplars": len(kept)}
                told |= _told(before, after, images.select(apart), workshop) if bool(apart.any()) else {}
                after = accepted(before, after, max_forgetting, self._history.calibration, told, workshop)
                record = self._accept(after)
            self._keep_exemplars(record, trained, exemplars)
        return record

    def rehearse_learn(
        self,
        labelled: Any,
        *,
        held_out: float = 0.0,
        skip_bad: bool = False,
        stream: bool | None = None,
        restart: bool = False,
    ) -> Rehearsal:
        """Check everything that `learn` checks, take a few steps, and tell what it would need; nothing is written.

        Args:
            labelled: As for `learn`.
            held_out: As for `learn`.
            skip_bad: As for `learn`.
            stream: As for `learn`.
            restart: Count a stage that was stopped from its beginning, as after `drop_progress`.

        Raises:
            InlayError: As for `learn`.
        """
        images, apart = self._new_images(labelled, held_out, skip_bad, stream)
        trained = images.select(~apart) if bool(apart.any()) else images
        check_known(trained, self.classes)
        stopped = None if restart else self._history.stopped()
        kept = self._kept()
        return rehearse_labelled(self.knowledge, trained, self.settings, self.device, stopped, kept)

    def _new_images(self, source: Any, share: float, skip_bad: bool, stream: bool | None) -> tuple[Images, Tensor]:
        """Return the images and which of them are kept out of training, bool [N]."""
        images = self._images(source, skip_bad, stream)
        check_labelled(images)
        check_continues(self.knowledge, self.settings)
        return images, self._held_out(images, share, "all are learned")

    def _held_out(self, images: Images, share: float, otherwise: str) -> Tensor:
        """Choose the images that are kept out of training, bool [N]; none, and say so, where there are too few."""
        assert images.labels is not None
        if not 0 <= share < 1:
            raise InlayError(f"The share that is kept out of training must be at least 0 and below 1; got {share}.")
        apart = held_out_images(images.labels, share, self.seed)
        if share and int(apart.sum()) < FEWEST_HELD_OUT:
            self.progress.note(
                f"There are too few images to keep {100 * share:g} % of each class out of training: {otherwise}."
            )
            return torch.zeros_like(apart)
        return apart

    @property
    def kept_beside(self) -> tuple[Path, Exemplars] | None:
        """The folder of the images that are kept of learned classes, and the images; None if there are none."""
        path, kept = self._history.path, self._kept()
        return None if kept is None or path is None else (exemplar_folder(path), kept)

    def _kept(self) -> Exemplars | None:
        return kept_exemplars(self._history.path, self.stages, self.knowledge.form, len(self.classes))

    def _check_exemplars(self, count: int) -> None:
        if count < 0:
            raise InlayError(f"The number of exemplars per class must be 0 or more; got {count}.")
        if count and self._history.place is None:
            raise InlayError("Exemplars are kept beside the run folder; pass run=FOLDER to the learner to have one.")

    def _keep_exemplars(self, record: StageRecord, images: Images, count: int) -> None:
        """Keep images of the classes of a stage, if that is asked for."""
        place = self._history.place
        if not count or place is None:
            return
        keep_exemplars(place, self.knowledge, record, images, count)
        self.progress.note(f"Up to {count} images of each class are kept in {exemplar_folder(place)}.")

    def _learned_in(self, images: Images) -> int | None:
        """Return the number of the stage that has learned these images already."""
        return self._history.finished(lambda index: labelled_identity(images, self.settings, self.seed, index))

    @abstractmethod
    def _workshop(self) -> Workshop:
        """Return where the next stage is computed."""

    @abstractmethod
    def _accept(self, knowledge: Knowledge) -> StageRecord:
        """Make a finished stage the present one."""


def _told(before: Knowledge, after: Knowledge, held_out: Images, workshop: Workshop) -> dict[str, Any]:
    """Measure the stage on images of its classes that were kept out of training."""
    assert held_out.labels is not None
    expected = len(before.registry) + held_out.labels.cpu()
    accuracy = float((after.logits(held_out).argmax(dim=1) == expected).double().mean())
    workshop.progress.note(
        f"Accuracy on the {len(held_out):,} images that were kept out of training: {100 * accuracy:.1f} %."
    )
    return {"held_out": {"images": len(held_out), "accuracy": accuracy}}
