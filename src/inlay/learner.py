"""The learner: labelled base, unlabelled stages, one merged network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from inlay import backbones, branches, pipeline
from inlay.data.arrays import is_array
from inlay.data.images import Images
from inlay.data.listing import Split
from inlay.engine.device import find_device
from inlay.engine.progress import Progress, QuietProgress
from inlay.engine.world import World
from inlay.errors import InlayError
from inlay.evaluation import Scores
from inlay.export import ExportFormat, Pixels, export
from inlay.history import History
from inlay.knowledge import Knowledge, StageRecord
from inlay.methods import check_settings
from inlay.prediction import Prediction
from inlay.reading import read_images
from inlay.registry import ClassRegistry
from inlay.rehearsal import Rehearsal
from inlay.scoring import score_knowledge
from inlay.settings import Settings
from inlay.settings import preset as settings_of
from inlay.trial import rehearse_base, rehearse_stage

__all__ = ["Learner", "as_batch"]


class Learner:
    """Learns labelled base classes once, then finds and learns new classes in unlabelled images.

    Args:
        backbone: Name of a backbone (see `inlay.backbones.names`) or a module from images to features [N, D].
        preset: Settings to start from: "inlay" or "paper".
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
            # Built only to refuse a wrong name at once; a generator of its own leaves torch's global one alone.
            backbones.build(backbone, generator=torch.Generator())
        self.settings = settings if isinstance(settings, Settings) else settings_of(preset).changed(settings or {})
        check_settings(self.settings)
        self.seed = seed
        self.device = find_device(device)
        self.progress: Progress = progress if progress is not None and World.current().is_main else QuietProgress()
        self._backbone = backbone
        self._size = size
        self._checkpoint_seconds = checkpoint_seconds
        own = None if isinstance(backbone, str) else backbone
        self._history = History(self.device, own, None if run is None else Path(run))

    # What the learner knows

    @property
    def knowledge(self) -> Knowledge:
        """Network, head, statistics and classes after the latest stage.

        Raises:
            InlayError: If nothing was learned yet.
        """
        if self._history.knowledge is None:
            raise InlayError("The learner knows no classes yet; call fit with labelled images first.")
        return self._history.knowledge

    @property
    def classes(self) -> ClassRegistry:
        """All classes, labelled and discovered; ids never move."""
        return self.knowledge.registry

    @property
    def stages(self) -> tuple[StageRecord, ...]:
        """What happened in each stage, the base stage first."""
        return tuple(self._history.records)

    # Learning

    def fit(self, base: Any, *, skip_bad: bool = False, stream: bool | None = None) -> StageRecord:
        """Learn the labelled base classes.

        Args:
            base: Labelled images: anything that `inlay.data.load` reads.
            skip_bad: Leave unreadable images out instead of refusing them.
            stream: Decode image files while training instead of keeping them decoded in memory; None does so if they
                would take more than half of the memory.

        Raises:
            InlayError: If the images are not fit for it, or the learner was fitted before.
        """
        images = self._base_images(base, skip_bad, stream)
        if self._history.has_base(pipeline.base_identity(images, self._backbone, self.settings, self.seed)):
            self.progress.note("The base stage is finished already; nothing was done.")
            return self._history.take_over(0)
        self._history.begin()
        with self._history.locked():
            return self._accept(pipeline.learn_base(images, self._backbone, self.settings, self.seed, self._workshop()))

    def discover(
        self, unlabelled: Any, classes: int, *, skip_bad: bool = False, stream: bool | None = None
    ) -> StageRecord:
        """Find and learn new classes: train branches, merge them, remember the classes.

        Args:
            unlabelled: Images: anything that `inlay.data.load` reads; labels are ignored.
            classes: Number of new classes in them.
            skip_bad: Leave unreadable images out instead of refusing them.
            stream: Decode image files while training, as for `fit`.

        Raises:
            InlayError: If the images are not fit for it; what was learned before is unchanged.
        """
        images = self._unlabelled_images(unlabelled, classes, skip_bad, stream)
        with self._history.locked():
            done = self._finished(images, classes)
            if done is not None:
                self.progress.note(f"These images were learned in stage {done} already; nothing was done.")
                return self._history.take_over(done)
            return self._accept(pipeline.learn_stage(self.knowledge, images, classes, self.settings, self._workshop()))

    # Planning

    def rehearse_fit(
        self, base: Any, *, skip_bad: bool = False, stream: bool | None = None, restart: bool = False
    ) -> Rehearsal:
        """Check everything that `fit` checks, take a few steps, and tell what it would need; nothing is written.

        Args:
            base: As for `fit`.
            skip_bad: As for `fit`.
            stream: As for `fit`.
            restart: Count a stage that was stopped from its beginning, as after `drop_progress`.

        Raises:
            InlayError: As for `fit`.
        """
        images = self._base_images(base, skip_bad, stream)
        if self._history.has_base(pipeline.base_identity(images, self._backbone, self.settings, self.seed)):
            self.progress.note("The base stage is finished already; fit would do nothing.")
            restart = True
        stopped = None if restart else self._history.stopped()
        return rehearse_base(images, self._backbone, self.settings, self.seed, self.device, stopped)

    def rehearse_discover(
        self,
        unlabelled: Any,
        classes: int,
        *,
        skip_bad: bool = False,
        stream: bool | None = None,
        restart: bool = False,
    ) -> Rehearsal:
        """Check everything that `discover` checks, take a few steps, and tell what it would need; nothing is written.

        Args:
            unlabelled: As for `discover`.
            classes: As for `discover`.
            skip_bad: As for `discover`.
            stream: As for `discover`.
            restart: Count a stage that was stopped from its beginning, as after `drop_progress`.

        Raises:
            InlayError: As for `discover`.
        """
        images = self._unlabelled_images(unlabelled, classes, skip_bad, stream)
        done = self._finished(images, classes)
        if done is not None:
            self.progress.note(f"These images were learned in stage {done} already; discover would do nothing.")
            restart = True
        stopped = None if restart else self._history.stopped()
        return rehearse_stage(self.knowledge, images, classes, self.settings, self.device, stopped)

    def drop_progress(self) -> None:
        """Drop the checkpoint of a stage that was stopped, so that it begins anew."""
        self._history.drop_progress()

    # Using

    def predict(self, images: Any, *, skip_bad: bool = False, stream: bool | None = None) -> list[Prediction]:
        """Return the most probable class of each image.

        Args:
            images: Anything that `inlay.data.load` reads: files, a folder, an array; or one image [H, W] or [H, W, C].
            skip_bad: Leave unreadable images out instead of refusing them.
            stream: Decode image files while predicting, as for `fit`.
        """
        loaded = self._images(as_batch(images), skip_bad, stream, cache=False)
        probabilities = self.knowledge.logits(loaded).softmax(dim=1)
        best, ids = probabilities.max(dim=1)
        entries = list(self.classes)
        return [
            Prediction(source, i, entries[i].name, p, entries[i].kind == "discovered")
            for source, i, p in zip(loaded.names, ids.tolist(), best.tolist(), strict=True)
        ]

    def evaluate(self, test: Any, match: Any = None, *, skip_bad: bool = False, stream: bool | None = None) -> Scores:
        """Score the joint head as benchmarks do.

        Discovered classes have no true names, so they are matched to them: on the images of their own stage,
        given once more with labels in `match`; this is stored and then fixed. Without it they are matched on the
        test images, and the result says `matched_on: test`.

        Args:
            test: Labelled test images. Classes that were not seen yet are left out, or count as wrong where stages
                are matched on the test images.
            match: Labelled images of the discovery stages.
            skip_bad: Leave unreadable images out instead of refusing them.
            stream: Decode image files while scoring, as for `fit`.
        """
        images = self._images(test, skip_bad, stream, split="test")
        labelled = None if match is None else self._images(match, skip_bad, stream)
        return score_knowledge(self.knowledge, self._history, images, labelled, self.progress)

    def matched_names(self, stage: int) -> tuple[str | None, ...]:
        """Return the true class of each class of a discovery stage, as matched by `evaluate`.

        Raises:
            InlayError: If the stage was not matched yet.
        """
        truths = self._history.truths.upto(self._history.records[-1].index)
        if stage not in truths:
            raise InlayError(f"Stage {stage} was not matched yet; call evaluate with labelled images in match.")
        return truths[stage].matching.truth_of

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

    def export(self, path: str | Path, format: ExportFormat = "onnx", *, pixels: Pixels = "uint8") -> Path:
        """Write the classifier for use without inlay, and return where; see `inlay.export.export`.

        Args:
            path: File to write or to replace ("onnx"), or a new folder ("state-dict").
            format: "onnx", which needs the extra onnx, or "state-dict".
            pixels: Type of the images that an ONNX file takes: "uint8", or "float32" in 0..1.

        Raises:
            InlayError: If nothing was learned yet, a package is missing, or the path cannot be written.
        """
        World.current().by_main(lambda: export(self.knowledge, Path(path), format, pixels))
        return Path(path)

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
        images = read_images(source, self.progress, stream=stream, size=self._size, skip_bad=skip_bad)
        pipeline.check_base(images)
        return images

    def _unlabelled_images(self, source: Any, classes: int, skip_bad: bool, stream: bool | None) -> Images:
        images = self._images(source, skip_bad, stream)
        if images.labels is not None:
            self.progress.note("The labels of these images are ignored: discovery works without labels.")
            images = images.without_labels()
        pipeline.check_unlabelled(images, classes)
        check_settings(self.settings)
        kept, wanted = self.knowledge.statistics.kind, self.settings.replay.statistics
        if kept != wanted:
            raise InlayError(
                f"This run keeps {kept!r} statistics of its classes and cannot go on with {wanted!r} ones; set "
                f"replay.statistics={kept}."
            )
        return images

    def _images(
        self, source: Any, skip_bad: bool, stream: bool | None, split: Split = "train", cache: bool = True
    ) -> Images:
        form = self.knowledge.form
        return read_images(
            source,
            self.progress,
            stream=stream,
            split=split,
            size=form.size,
            channels=form.channels,
            skip_bad=skip_bad,
            cache=cache,
        )

    def _workshop(self) -> pipeline.Workshop:
        return pipeline.Workshop(self.device, self.progress, self._history.checkpoint(), self._checkpoint_seconds)

    def _finished(self, images: Images, classes: int) -> int | None:
        """Return the number of the stage that has learned these images already."""
        return self._history.finished(
            lambda index: pipeline.stage_identity(images, classes, self.settings, self.seed, index)
        )

    def _accept(self, knowledge: Knowledge) -> StageRecord:
        record = self._history.add(knowledge)
        if branches.is_hybrid(knowledge.network):
            parameters = branches.count_parameters(knowledge.network)
            self.progress.note(
                f"Gates of this kind depend on the image and cannot be merged: the hybrid is kept, with {parameters:,} "
                f"parameters, and no stage can follow."
            )
        return record


def as_batch(images: Any) -> Any:
    """Return one image, an array [H, W] or [H, W, C], as a batch of one, and anything else as it is."""
    alone = is_array(images) and (images.ndim == 2 or (images.ndim == 3 and images.shape[-1] in (1, 3)))
    return images[None] if alone else images
