"""The learner: labelled base, stages of new classes, one merged network."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from inlay import backbones, branches, pipeline
from inlay.calibration import Calibration
from inlay.data.images import Images
from inlay.described import Described, described
from inlay.discovering import Search, discover_in_pile, search_identity
from inlay.engine.device import find_device
from inlay.engine.progress import Progress, QuietProgress
from inlay.engine.randomness import derive_seed
from inlay.engine.world import World
from inlay.errors import InlayError
from inlay.history import History
from inlay.knowledge import Knowledge, StageRecord
from inlay.learning import LabelledLearning
from inlay.medoids import place_of
from inlay.methods import check_settings
from inlay.piles import calibrated
from inlay.reading import read_images
from inlay.rehearsal import Rehearsal
from inlay.requirements import check_base, check_continues, check_max_forgetting, check_unlabelled, whole_number
from inlay.selftest import FEWEST_FOR_TRIAL, classes_to_hide, hide_and_find
from inlay.settings import Settings
from inlay.settings import preset as settings_of
from inlay.trial import rehearse_base, rehearse_stage

__all__ = ["Learner"]

_ERROR = 0.05
_WITHOUT_HELD_OUT = "all are learned, and later piles cannot be sorted"
_ASSUMED_CLASSES = 10
_NEW_CLASSES = "The number of new classes"


class Learner(LabelledLearning):
    """Learns labelled base classes once, then new classes: finds them in unlabelled images, or is given labels.

    Args:
        backbone: Name of a backbone (see `inlay.backbones.names`) or a module from images to features [N, D].
        preset: Settings to start from, see `inlay.settings.preset_names`.
        settings: Changes to the preset by dotted path, such as {"training.epochs": 30}, or complete settings.
        seed: Seed of everything random.
        size: Side of the images; None takes it from the base images.
        device: "cpu", "cuda" or "auto".
        run: Folder in which the run is kept as it goes, so that it can be stopped and resumed; None keeps it in
            memory until `save`.
        checkpoint_seconds: Time between checkpoints of a stage under way.
        progress: Receiver of news; None is quiet.

    Example:
        >>> learner = Learner(backbone="resnet18")  # doctest: +SKIP
        >>> learner.fit("photos/labelled")  # doctest: +SKIP
        >>> learner.discover("photos/new", classes=5)  # doctest: +SKIP
        >>> learner.learn("photos/more-labelled")  # doctest: +SKIP
        >>> learner.predict("photos/one.jpg")  # doctest: +SKIP
    """

    def __init__(
        self,
        backbone: str | nn.Module = "resnet18",
        *,
        preset: str = "inlay",
        settings: Mapping[str, Any] | Settings | None = None,
        seed: int = 0,
        size: int | None = None,
        device: str = "auto",
        run: str | Path | None = None,
        checkpoint_seconds: float = 30.0,
        progress: Progress | None = None,
    ) -> None:
        if isinstance(backbone, str):
            backbones.check_name(backbone)
        self.settings = settings if isinstance(settings, Settings) else settings_of(preset).changed(settings or {})
        check_settings(self.settings)
        self.seed = whole_number(seed, "The seed")
        self.device = find_device(device)
        self.progress: Progress = progress if progress is not None and World.current().is_main else QuietProgress()
        self._backbone = backbone
        self._size = size
        self._checkpoint_seconds = checkpoint_seconds
        own = None if isinstance(backbone, str) else backbone
        self._history = History(self.device, own, None if run is None else Path(run))

    # Learning

    def fit(
        self,
        base: Any,
        *,
        held_out: float = 0.0,
        self_test: bool = False,
        exemplars: int = 0,
        skip_bad: bool = False,
        stream: bool | None = None,
    ) -> StageRecord:
        """Learn the labelled base classes.

        Args:
            base: Labelled images: anything that `inlay.data.load` reads.
            held_out: Share of each class that is kept out of training, so that the run knows its accuracy and can
                sort known images out of later piles.
            self_test: Hide some classes afterwards, learn the others anew and find the hidden ones, so that the run
                knows how far its estimates are off; it takes about as long again, and needs `held_out`.
            exemplars: Images of each class to keep beside the run folder, for later stages of `learn`.
            skip_bad: Leave unreadable images out instead of refusing them.
            stream: Decode image files while training instead of holding all of them; None does so where they would
                take more than a quarter of the memory.

        Raises:
            InlayError: If the images are not fit for it, or the learner was fitted before.
        """
        self._check_exemplars(exemplars)
        images = self._base_images(base, skip_bad, stream)
        apart = self._held_out(images, held_out, _WITHOUT_HELD_OUT)
        trained = images.select(~apart) if bool(apart.any()) else images
        labelled: Described | None = None
        if self._history.has_base(pipeline.base_identity(trained, self._backbone, self.settings, self.seed)):
            self.progress.note("The base stage is finished already; nothing was done.")
            record = self._history.take_over(0)
        else:
            self._history.begin()
            with self._history.locked():
                labelled = self._described(images)
                record = self._accept(self._learned_base(labelled, apart, place_of(base)))
        with self._history.locked():
            self._keep_exemplars(record, trained, exemplars)
            if bool(apart.any()) and self._history.calibration is None:
                labelled = labelled or self._described(images)
                self._history.keep_calibration(self._calibrated(labelled, apart, self_test))
        return record

    def discover(
        self,
        unlabelled: Any,
        classes: int | None = None,
        *,
        all_new: bool | None = None,
        max_forgetting: float | None = None,
        skip_bad: bool = False,
        stream: bool | None = None,
    ) -> StageRecord | None:
        """Find and learn new classes: train branches, merge them, remember the classes.

        Args:
            unlabelled: Images: anything that `inlay.data.load` reads; labels are ignored.
            classes: Number of new classes in them; None estimates it.
            all_new: Whether all images are of new classes; if not, those of known classes are sorted out first. None
                sorts if the run can, because images were kept out of its base stage.
            max_forgetting: Refuse the stage if the accuracy on old classes would fall by more than this, 0 to 1.
            skip_bad: Leave unreadable images out instead of refusing them.
            stream: Decode image files while training, as for `fit`.

        Returns:
            The stage; None if nothing new was found.

        Raises:
            InlayError: If the images are not fit for it; what was learned before is unchanged.
        """
        check_max_forgetting(max_forgetting)
        classes = None if classes is None else whole_number(classes, _NEW_CLASSES)
        images = self._unlabelled_images(unlabelled, 1 if classes is None else classes, skip_bad, stream)
        calibration = self._history.calibration
        sort = calibration is not None if all_new is None else not all_new
        search = Search(classes, sort, _ERROR, max_forgetting)
        with self._history.locked():
            done = self._finished(images, search)
            if done is not None:
                self.progress.note(f"These images were learned in stage {done} already; nothing was done.")
                return self._history.take_over(done)
            workshop = self._workshop()
            place = place_of(unlabelled)
            after = discover_in_pile(self.knowledge, images, search, self.settings, workshop, calibration, place)
            return None if after is None else self._accept(after)

    # Planning

    def rehearse_fit(
        self,
        base: Any,
        *,
        held_out: float = 0.0,
        skip_bad: bool = False,
        stream: bool | None = None,
        restart: bool = False,
    ) -> Rehearsal:
        """Check everything that `fit` checks, take a few steps, and tell what it would need; nothing is written.

        A self-test is not counted: it takes about as long again.

        Args:
            base: As for `fit`.
            held_out: As for `fit`.
            skip_bad: As for `fit`.
            stream: As for `fit`.
            restart: Count a stage that was stopped from its beginning, as after `drop_progress`.

        Raises:
            InlayError: As for `fit`.
        """
        images = self._base_images(base, skip_bad, stream)
        apart = self._held_out(images, held_out, _WITHOUT_HELD_OUT)
        images = images.select(~apart) if bool(apart.any()) else images
        if self._history.has_base(pipeline.base_identity(images, self._backbone, self.settings, self.seed)):
            self.progress.note("The base stage is finished already; fit would do nothing.")
            restart = True
        stopped = None if restart else self._history.stopped()
        return rehearse_base(images, self._backbone, self.settings, self.seed, self.device, stopped)

    def rehearse_discover(
        self,
        unlabelled: Any,
        classes: int | None = None,
        *,
        skip_bad: bool = False,
        stream: bool | None = None,
        restart: bool = False,
    ) -> Rehearsal:
        """Check everything that `discover` checks, take a few steps, and tell what it would need; nothing is written.

        Args:
            unlabelled: As for `discover`.
            classes: As for `discover`; None assumes ten, and that all images are new.
            skip_bad: As for `discover`.
            stream: As for `discover`.
            restart: Count a stage that was stopped from its beginning, as after `drop_progress`.

        Raises:
            InlayError: As for `discover`.
        """
        given, classes = classes, _ASSUMED_CLASSES if classes is None else whole_number(classes, _NEW_CLASSES)
        images = self._unlabelled_images(unlabelled, classes, skip_bad, stream)
        done = self._finished(images, Search(classes))
        if done is not None:
            self.progress.note(f"These images were learned in stage {done} already; discover would do nothing.")
            restart = True
        stopped = None if restart else self._history.stopped()
        rehearsal = rehearse_stage(self.knowledge, images, classes, self.settings, self.device, stopped)
        if given is None:
            self.progress.note(f"The number of new classes is not given; {classes} are assumed.")
        return rehearsal

    def drop_progress(self) -> None:
        """Drop the checkpoint of a stage that was stopped, so that it begins anew."""
        self._history.drop_progress()

    def rollback(self, to: int) -> tuple[StageRecord, ...]:
        """Go back to an earlier stage, with its settings; a run folder keeps the run as it was under `dropped`.

        Args:
            to: Number of the stage; 0 is the base stage.

        Returns:
            The stages that were dropped, none if `to` is the latest one.

        Raises:
            InlayError: If there is no such stage, or another process is writing to the run folder.
        """
        dropped = self._history.rollback(to)
        self.settings = self.knowledge.settings
        return dropped

    def save(self, path: str | Path) -> Path:
        """Write the run to a folder that `inlay.load` opens, on this machine or another, and return the folder.

        Args:
            path: A new or empty folder, or one that holds the first stages of this run.

        Raises:
            InlayError: If nothing was learned yet, or the folder holds something else.
        """
        if self._history.knowledge is None:
            raise InlayError("The learner knows no classes yet, so there is nothing to save; call fit first.")
        self._history.save(Path(path))
        return Path(path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        stage: int | None = None,
        backbone: nn.Module | None = None,
        device: str = "auto",
        progress: Progress | None = None,
        checkpoint_seconds: float = 30.0,
    ) -> Self:
        """Open a run folder; stages that follow are kept in it.

        Args:
            path: Folder of the run.
            stage: Open the run as it was after this stage, for predicting and scoring; None is the latest.
            backbone: The module of the run, if it was made with one of the user's own.
            device: "cpu", "cuda" or "auto".
            progress: Receiver of news; None is quiet.
            checkpoint_seconds: Time between checkpoints of a stage under way.

        Raises:
            InlayError: If the folder is not a whole run.
        """
        history = History.load(Path(path), stage, find_device(device), backbone)
        assert history.knowledge is not None
        learner = cls(
            backbone if backbone is not None else str(history.knowledge.backbone),
            settings=history.knowledge.settings,
            seed=history.knowledge.seed,
            device=device,
            checkpoint_seconds=checkpoint_seconds,
            progress=progress,
        )
        learner._history = history
        return learner

    # Inner workings

    def _base_images(self, source: Any, skip_bad: bool, stream: bool | None) -> Images:
        if self._history.knowledge is not None:
            raise InlayError("This learner has its base classes already; add classes with discover.")
        # A pretrained network wants images as it was trained on, which is asked before they are read.
        expected = backbones.expected(self._backbone)
        size, channels = (self._size, None) if expected is None else (self._size or expected.size, 3)
        images = read_images(source, self.progress, stream=stream, size=size, channels=channels, skip_bad=skip_bad)
        check_base(images)
        warning = backbones.scratch_warning(self._backbone, len(images), images.channels, min(images.size))
        if warning is not None:
            self.progress.note(warning)
        return images

    def _unlabelled_images(self, source: Any, classes: int, skip_bad: bool, stream: bool | None) -> Images:
        images = self._images(source, skip_bad, stream)
        if images.labels is not None:
            self.progress.note("The labels of these images are ignored: discovery works without labels.")
            images = images.without_labels()
        check_unlabelled(images, classes)
        check_continues(self.knowledge, self.settings)
        return images

    def _workshop(self) -> pipeline.Workshop:
        return pipeline.Workshop(self.device, self.progress, self._history.checkpoint(), self._checkpoint_seconds)

    def _learned_base(self, labelled: Described, apart: Tensor, place: str) -> Knowledge:
        """Learn the images that are not apart, and refer to the others."""
        trained = labelled.select(~apart) if bool(apart.any()) else labelled
        how = (self._backbone, self.settings, self.seed, self._workshop(), place)
        learned = pipeline.learn_base(trained.images, *how, trained.features)
        seconds = learned.record.seconds + labelled.seconds
        learned = replace(learned, record=replace(learned.record, seconds=seconds))
        if not bool(apart.any()):
            return learned
        others = labelled.select(apart)
        return learned.referring_to(others.by(learned), others.labels)

    def _described(self, images: Images) -> Described:
        return described(images, self._backbone, self.settings, self._workshop())

    def _calibrated(self, labelled: Described, apart: Tensor, self_test: bool) -> Calibration:
        images, held_out = labelled.images, labelled.select(apart)
        calibration = calibrated(self.knowledge, held_out.by(self.knowledge), held_out.labels, _ERROR)
        share = f"{100 * calibration.accuracy:.1f} %"
        self.progress.note(f"Accuracy on the {int(apart.sum()):,} images that were kept out of training: {share}.")
        hidden = classes_to_hide(images.class_names, self.seed) if self_test else ()
        visible = [name for name in images.class_names if name not in hidden]
        if self_test and (not hidden or len(images.select(apart).of_classes(visible)) < FEWEST_FOR_TRIAL):
            self.progress.note(
                f"There are too few classes or images for a self-test, which needs at least four classes and "
                f"{FEWEST_FOR_TRIAL} images that were kept out of training besides those of the classes it hides; "
                f"intervals are not calibrated. A larger --held-out keeps more out."
            )
            return calibration
        if not hidden:
            return calibration
        seed, workshop = derive_seed(self.seed, "self-test"), self._workshop()
        trial = hide_and_find(labelled, apart, hidden, self._backbone, self.settings, seed, workshop, _ERROR)
        self.progress.note(
            f"Self-test: {trial.after_sorting.estimate} classes were counted where {len(hidden)} had been hidden; "
            f"{100 * trial.new_found:.0f} % of their images were found, and {100 * trial.known_error:.0f} % of known "
            f"ones were taken for new."
        )
        return replace(calibration, trials=(trial,))

    def _finished(self, images: Images, search: Search) -> int | None:
        """Return the number of the stage that has learned these images already."""
        return self._history.finished(lambda index: search_identity(images, search, self.settings, self.seed, index))

    def _accept(self, knowledge: Knowledge) -> StageRecord:
        record = self._history.add(knowledge)
        if branches.is_hybrid(knowledge.network):
            parameters = branches.count_parameters(knowledge.network)
            self.progress.note(
                f"Gates of this kind depend on the image and cannot be merged: the hybrid is kept, with {parameters:,} "
                f"parameters, and no stage can follow."
            )
        return record
