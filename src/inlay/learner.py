"""The learner: labelled base, unlabelled stages, one merged network."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from inlay import backbones
from inlay.data import ImageSet, load
from inlay.data.listing import Split
from inlay.engine.progress import Progress, QuietProgress
from inlay.errors import InlayError
from inlay.evaluation import Scores
from inlay.evaluation.benchmark import StageTruth, match_on_test, match_stage, score_learner
from inlay.knowledge import Knowledge, StageRecord
from inlay.methods import check_settings
from inlay.pipeline import Workshop, learn_base, learn_stage
from inlay.prediction import Prediction
from inlay.registry import ClassRegistry
from inlay.run_folder import RunFolder
from inlay.settings import Settings
from inlay.settings import preset as settings_of

__all__ = ["Learner"]

_SMALLEST_SIDE = 8


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
        self.settings = _settings(preset, settings)
        check_settings(self.settings)
        self.seed = seed
        self.device = _device(device)
        self.progress: Progress = progress or QuietProgress()
        self._backbone = backbone
        self._size = size
        self._checkpoint_seconds = checkpoint_seconds
        self._run: RunFolder | None = None
        self._target = None if run is None else Path(run)
        if self._target is not None:
            RunFolder(self._target).refuse_occupied()
        self._knowledge: Knowledge | None = None
        self._records: list[StageRecord] = []
        self._unsaved: list[Knowledge] = []
        self._truths: dict[int, StageTruth] = {}

    # What the learner knows

    @property
    def knowledge(self) -> Knowledge:
        """Network, head, statistics and classes after the latest stage.

        Raises:
            InlayError: If nothing was learned yet.
        """
        if self._knowledge is None:
            raise InlayError("The learner knows no classes yet; call fit with labelled images first.")
        return self._knowledge

    @property
    def classes(self) -> ClassRegistry:
        """All classes, labelled and discovered; ids never move."""
        return self.knowledge.registry

    @property
    def stages(self) -> tuple[StageRecord, ...]:
        """What happened in each stage, the base stage first."""
        return tuple(self._records)

    # Learning

    def fit(self, base: Any, *, skip_bad: bool = False) -> StageRecord:
        """Learn the labelled base classes.

        Args:
            base: Labelled images: anything that `inlay.data.load` reads.
            skip_bad: Leave unreadable images out instead of refusing them.

        Raises:
            InlayError: If the images are not fit for it, or the learner was fitted before.
        """
        if self._knowledge is not None:
            raise InlayError("This learner has its base classes already; add classes with discover.")
        images = load(base, size=self._size, skip_bad=skip_bad)
        self._note_skipped(images)
        _check_base(images)
        if self._target is not None:
            self._run = RunFolder.create(self._target)
        with self._locked():
            return self._accept(learn_base(images, self._backbone, self.settings, self.seed, self._workshop()))

    def discover(self, unlabelled: Any, classes: int, *, skip_bad: bool = False) -> StageRecord:
        """Find and learn new classes: train branches, merge them, remember the classes.

        Args:
            unlabelled: Images: anything that `inlay.data.load` reads; labels are ignored.
            classes: Number of new classes in them.
            skip_bad: Leave unreadable images out instead of refusing them.

        Raises:
            InlayError: If the images are not fit for it; what was learned before is unchanged.
        """
        images = self._images(unlabelled, skip_bad)
        if images.labels is not None:
            self.progress.note("The labels of these images are ignored: discovery works without labels.")
            images = images.without_labels()
        if classes < 1:
            raise InlayError(f"The number of new classes must be at least 1; got {classes}.")
        if len(images) <= max(classes, 1):
            raise InlayError(
                f"Finding {classes} new classes needs more than {classes} images; got {len(images)}: give more images "
                f"or a smaller number of classes."
            )
        check_settings(self.settings)
        kept, wanted = self.knowledge.statistics.kind, self.settings.replay.statistics
        if kept != wanted:
            raise InlayError(
                f"This run keeps {kept!r} statistics of its classes and cannot go on with {wanted!r} ones; set "
                f"replay.statistics={kept}."
            )
        if self._run is not None and self._run.stage_count > len(self._records):
            raise InlayError(f"{self._run.path} has later stages; load it without a stage number to add another.")
        with self._locked():
            return self._accept(learn_stage(self.knowledge, images, classes, self.settings, self._workshop()))

    def drop_progress(self) -> None:
        """Drop the checkpoint of a stage that was stopped, so that it begins anew."""
        run = self._run
        if run is None and self._target is not None and RunFolder.exists(self._target):
            run = RunFolder.open(self._target)
        if run is not None:
            run.clear_progress()

    # Using

    def predict(self, images: Any, *, skip_bad: bool = False) -> list[Prediction]:
        """Return the most probable class of each image.

        Args:
            images: Anything that `inlay.data.load` reads: a file, a list of files, a folder, an array.
            skip_bad: Leave unreadable images out instead of refusing them.
        """
        loaded = self._images(images, skip_bad)
        probabilities = self.knowledge.logits(loaded.images).softmax(dim=1)
        best, ids = probabilities.max(dim=1)
        entries = list(self.classes)
        return [
            Prediction(source, i, entries[i].name, p, entries[i].kind == "discovered")
            for source, i, p in zip(loaded.names, ids.tolist(), best.tolist(), strict=True)
        ]

    def evaluate(self, test: Any, match: Any = None) -> Scores:
        """Score the joint head as benchmarks do.

        Discovered classes have no true names, so they are matched to them: on the images of their own stage,
        given once more with labels in `match`; this is stored and then fixed. Without it they are matched on the
        test images, and the result says `matched_on: test`.

        Args:
            test: Labelled test images; classes that were not seen yet are left out.
            match: Labelled images of the discovery stages.
        """
        images = self._images(test, False, split="test")
        labelled = None if match is None else self._images(match, False)
        logits = self.knowledge.logits(images.images)
        truths = self._stage_truths(labelled)
        base = self._records[0].class_names
        stages = {r.index: [e.id for e in self.classes.of_stage(r.index)] for r in self._records[1:]}
        missing = {index: ids for index, ids in stages.items() if index not in truths}
        if missing:
            known = [*base, *(name for truth in truths.values() for name in truth.names)]
            truths |= match_on_test(logits, images, known, missing)
        class_stages = [entry.stage for entry in self.classes]
        scores, left_out = score_learner(
            logits, images, base, class_stages, [truths[index] for index in sorted(truths)]
        )
        if left_out:
            self.progress.note(f"{left_out} test images of classes that were not seen yet are left out.")
        return scores

    def matched_names(self, stage: int) -> tuple[str | None, ...]:
        """Return the true class of each class of a discovery stage, as matched by `evaluate`.

        Raises:
            InlayError: If the stage was not matched yet.
        """
        if stage not in self._truths:
            raise InlayError(f"Stage {stage} was not matched yet; call evaluate with labelled images in match.")
        return self._truths[stage].matching.truth_of

    def save(self, path: str | Path) -> Path:
        """Write the run to a folder that `inlay.load` opens, on this machine or another.

        Args:
            path: A new or empty folder, or the folder of this run.

        Returns:
            The folder.

        Raises:
            InlayError: If nothing was learned yet, or the folder holds something else.
        """
        if self._knowledge is None:
            raise InlayError("The learner knows no classes yet, so there is nothing to save; call fit first.")
        target = Path(path)
        if self._run is not None and self._run.path.resolve() == target.resolve():
            return target
        folder = RunFolder.create(target)
        for index in range(len(self._records)):
            tensors, facts = self._run.read(index) if self._run else self._unsaved[index].to_files()
            folder.commit(index, "novel" if index else "base", tensors, facts)
        truths = self._stage_truths(None)
        if truths:
            folder.write_extra("matching", [truth.to_json() for truth in truths.values()])
        return target

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
    ) -> "Learner":
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
        run = RunFolder.open(Path(path))
        tensors, facts = run.read(-1 if stage is None else stage)
        knowledge = Knowledge.from_files(tensors, facts, _device(device), backbone)
        learner = cls(
            backbone if backbone is not None else str(knowledge.backbone),
            settings=knowledge.settings,
            seed=knowledge.seed,
            device=device,
            checkpoint_seconds=checkpoint_seconds,
            progress=progress,
        )
        known = knowledge.record.index + 1
        learner._run = run
        learner._knowledge = knowledge
        learner._records = [StageRecord.from_json(run.read_facts(index)["stage"]) for index in range(known)]
        truths = [StageTruth.from_json(entry) for entry in run.read_extra("matching") or ()]
        learner._truths = {truth.matching.stage: truth for truth in truths}
        return learner

    # Inner workings

    def _images(self, source: Any, skip_bad: bool, split: Split = "train") -> ImageSet:
        form = self.knowledge.form
        images = load(source, split=split, size=form.size, channels=form.channels, skip_bad=skip_bad)
        self._note_skipped(images)
        return images

    def _note_skipped(self, images: ImageSet) -> None:
        if images.skipped:
            self.progress.note(f"Left out {len(images.skipped)} unreadable images, such as {images.skipped[0]}.")

    def _workshop(self) -> Workshop:
        checkpoint = None if self._run is None else self._run.progress_path("training.safetensors")
        return Workshop(self.device, self.progress, checkpoint, self._checkpoint_seconds)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._run is None:
            yield
        else:
            with self._run.lock():
                yield

    def _accept(self, knowledge: Knowledge) -> StageRecord:
        """Make a finished stage the present one, on the disk first."""
        record = knowledge.record
        if self._run is None:
            self._unsaved.append(knowledge)
        else:
            kind: Literal["base", "novel"] = "novel" if record.index else "base"
            self._run.commit(record.index, kind, *knowledge.to_files())
        self._knowledge = knowledge
        self._records.append(record)
        return record

    def _stage_truths(self, labelled: ImageSet | None) -> dict[int, StageTruth]:
        """Return what the clusters of each stage stand for, as far as it is known."""
        if labelled is not None and all(record.index in self._truths for record in self._records[1:]):
            self.progress.note("The discovered classes were matched before, and that matching stands.")
        for record in self._records[1:]:
            if labelled is not None and record.index not in self._truths:
                cluster_of = dict(zip(record.fingerprints, record.clusters, strict=True))
                count = len(record.class_names)
                known = [*self._records[0].class_names, *(n for t in self._truths.values() for n in t.names)]
                self._truths[record.index] = match_stage(record.index, cluster_of, count, labelled, known)
                if self._run is not None:
                    self._run.write_extra("matching", [truth.to_json() for truth in self._truths.values()])
        return {record.index: self._truths[record.index] for record in self._records if record.index in self._truths}


def _check_base(images: ImageSet) -> None:
    """Refuse images that no classifier can be trained on."""
    if images.labels is None:
        raise InlayError("fit needs labels; give a folder with one sub-folder per class.")
    if len(images.class_names) < 2:
        raise InlayError("fit needs images of at least two classes; give a folder with one sub-folder per class.")
    sizes = torch.bincount(images.labels, minlength=len(images.class_names)).tolist()
    if 0 in sizes:
        empty = images.class_names[sizes.index(0)]
        raise InlayError(f"fit needs images of each class, but there are none of {empty!r}; add some or leave it out.")
    if max(sizes) < 2:
        raise InlayError("fit needs more than one image of a class; give more images.")
    if min(images.size) < _SMALLEST_SIDE:
        raise InlayError(
            f"fit needs images of at least {_SMALLEST_SIDE} pixels a side, not {min(images.size)}; pass a larger "
            f"--size."
        )


def _settings(preset: str, settings: Mapping[str, Any] | Settings | None) -> Settings:
    if isinstance(settings, Settings):
        return settings
    return settings_of(preset).changed(settings or {})


def _device(name: str) -> torch.device:
    if name not in ("auto", "cpu") and not name.startswith("cuda"):
        raise InlayError(f"There is no device {name!r}; write auto, cpu or cuda.")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InlayError("No CUDA device is available; write --device cpu.")
    return torch.device(name)
