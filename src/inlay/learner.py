"""The learner: labelled base, unlabelled stages, one merged network."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from inlay import backbones, branches
from inlay.data import ImageSet, load
from inlay.data.listing import Split
from inlay.engine.device import find_device
from inlay.engine.progress import Progress, QuietProgress, counting
from inlay.errors import InlayError
from inlay.evaluation import Scores
from inlay.evaluation.benchmark import match_on_test, score_learner
from inlay.evaluation.truths import StageTruths
from inlay.knowledge import Knowledge, StageRecord
from inlay.methods import check_settings
from inlay.pipeline import (
    Workshop,
    base_identity,
    check_base,
    check_unlabelled,
    learn_base,
    learn_stage,
    stage_identity,
)
from inlay.prediction import Prediction
from inlay.registry import ClassRegistry
from inlay.run_folder import RunFolder
from inlay.saving import save_run
from inlay.settings import Settings
from inlay.settings import preset as settings_of

__all__ = ["Learner"]


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
        self.device = find_device(device)
        self.progress: Progress = progress or QuietProgress()
        self._backbone = backbone
        self._size = size
        self._checkpoint_seconds = checkpoint_seconds
        self._run: RunFolder | None = None
        self._target = None if run is None else Path(run)
        if self._target is not None and not RunFolder.exists(self._target):
            RunFolder(self._target).refuse_occupied()
        self._knowledge: Knowledge | None = None
        self._records: list[StageRecord] = []
        self._unsaved: list[Knowledge] = []
        self._truths = StageTruths()

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
        images = self._read(base, size=self._size, skip_bad=skip_bad)
        check_base(images)
        if self._target is not None:
            identity = base_identity(images, self._backbone, self.settings, self.seed)
            if self._taken_up(self._target, identity):
                return self._records[0]
            self._run = RunFolder.create(self._target)
            self._truths = StageTruths(self._run)
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
        check_unlabelled(images, classes)
        check_settings(self.settings)
        kept, wanted = self.knowledge.statistics.kind, self.settings.replay.statistics
        if kept != wanted:
            raise InlayError(
                f"This run keeps {kept!r} statistics of its classes and cannot go on with {wanted!r} ones; set "
                f"replay.statistics={kept}."
            )
        with self._locked():
            done = self._done_before(images, classes)
            if done is not None:
                self.progress.note(f"These images were learned in stage {done.index} already; nothing was done.")
                return done
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
        loaded = self._images(images, skip_bad, cache=False)
        probabilities = self.knowledge.logits(loaded.images).softmax(dim=1)
        best, ids = probabilities.max(dim=1)
        entries = list(self.classes)
        return [
            Prediction(source, i, entries[i].name, p, entries[i].kind == "discovered")
            for source, i, p in zip(loaded.names, ids.tolist(), best.tolist(), strict=True)
        ]

    def evaluate(self, test: Any, match: Any = None, *, skip_bad: bool = False) -> Scores:
        """Score the joint head as benchmarks do.

        Discovered classes have no true names, so they are matched to them: on the images of their own stage,
        given once more with labels in `match`; this is stored and then fixed. Without it they are matched on the
        test images, and the result says `matched_on: test`.

        Args:
            test: Labelled test images. Classes that were not seen yet are left out, or count as wrong where stages
                are matched on the test images.
            match: Labelled images of the discovery stages.
            skip_bad: Leave unreadable images out instead of refusing them.
        """
        images = self._images(test, skip_bad, split="test")
        labelled = None if match is None else self._images(match, skip_bad)
        logits = self.knowledge.logits(images.images)
        if labelled is not None and not self._truths.match(self._records, labelled):
            self.progress.note("The discovered classes were matched before, and that matching stands.")
        truths = self._truths.upto(self._records[-1].index)
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
        truths = self._truths.upto(self._records[-1].index)
        if stage not in truths:
            raise InlayError(f"Stage {stage} was not matched yet; call evaluate with labelled images in match.")
        return truths[stage].matching.truth_of

    def save(self, path: str | Path) -> Path:
        """Write the run to a folder that `inlay.load` opens, on this machine or another.

        Args:
            path: A new or empty folder, or one that holds the first stages of this run.

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
        source = self._run
        stages = [
            self._unsaved[index].to_files() if source is None else source.read(index)
            for index in range(len(self._records))
        ]
        StageTruths(save_run(target, stages)).add(self._truths.upto(self._records[-1].index))
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
        knowledge = Knowledge.from_files(tensors, facts, find_device(device), backbone)
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
        learner._truths = StageTruths(run)
        return learner

    # Inner workings

    def _images(self, source: Any, skip_bad: bool, split: Split = "train", cache: bool = True) -> ImageSet:
        form = self.knowledge.form
        return self._read(source, split=split, size=form.size, channels=form.channels, skip_bad=skip_bad, cache=cache)

    def _read(self, source: Any, **options: Any) -> ImageSet:
        with counting(self.progress, "reading images") as report:
            images = load(source, on_progress=report, **options)
        if images.skipped:
            self.progress.note(f"Left out {len(images.skipped)} unreadable images, such as {images.skipped[0]}.")
        return images

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
        if branches.is_hybrid(knowledge.network):
            parameters = branches.count_parameters(knowledge.network)
            self.progress.note(
                f"Gates of this kind depend on the image and cannot be merged: the hybrid is kept, with {parameters:,} "
                f"parameters, and no stage can follow."
            )
        return record

    def _taken_up(self, target: Path, identity: str) -> bool:
        """Take up a run that has this very base stage already; say whether there was one."""
        if not RunFolder.exists(target) or RunFolder.open(target).stage_count == 0:
            return False
        run = RunFolder.open(target)
        if run.read_facts(0)["stage"]["identity"] != identity:
            run.refuse_occupied()
        self._run, self._truths = run, StageTruths(run)
        self._take_over(0)
        self.progress.note(f"The base stage is finished already in {target}; nothing was done.")
        return True

    def _done_before(self, images: ImageSet, classes: int) -> StageRecord | None:
        """Return the finished stage that would be repeated, if there is one; it is the present one then.

        Raises:
            InlayError: If the run folder has other stages after the present one.
        """
        for record in self._records[1:]:
            if record.identity == stage_identity(images, classes, self.settings, self.seed, record.index):
                return record
        index = len(self._records)
        if self._run is None or self._run.stage_count <= index:
            return None
        identity = stage_identity(images, classes, self.settings, self.seed, index)
        if self._run.read_facts(index)["stage"]["identity"] != identity:
            raise InlayError(f"{self._run.path} has later stages; load it anew, without a stage number.")
        self._take_over(index)
        return self._records[index]

    def _take_over(self, index: int) -> None:
        """Make a finished stage of the run folder the present one."""
        assert self._run is not None
        backbone = None if isinstance(self._backbone, str) else self._backbone
        self._knowledge = Knowledge.from_files(*self._run.read(index), self.device, backbone)
        self._records.append(self._knowledge.record)


def _settings(preset: str, settings: Mapping[str, Any] | Settings | None) -> Settings:
    if isinstance(settings, Settings):
        return settings
    return settings_of(preset).changed(settings or {})
