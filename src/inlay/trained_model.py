"""What can be asked of a model that has learned something."""

from pathlib import Path
from typing import Any

from inlay.clusters import SortedImage, sorted_images
from inlay.data.arrays import is_array
from inlay.data.images import Images
from inlay.data.listing import Split
from inlay.engine.progress import Progress
from inlay.engine.world import World
from inlay.errors import InlayError
from inlay.evaluation import Scores
from inlay.export import ExportFormat, Pixels, export
from inlay.history import History
from inlay.knowledge import Knowledge, StageRecord
from inlay.output_file import check_output, write_output
from inlay.prediction import Prediction
from inlay.reading import read_images
from inlay.registry import ClassRegistry
from inlay.review.server.images import folder_of_stage
from inlay.review.stage import open_stage
from inlay.review.stage_report import render_stage
from inlay.scoring import score_knowledge

__all__ = ["TrainedModel", "as_batch"]


class TrainedModel:
    """The stages of a learner, and what they are good for.

    Attributes:
        progress: Receiver of news.
    """

    progress: Progress
    _history: History

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

    def predict(self, images: Any, *, skip_bad: bool = False, stream: bool | None = None) -> list[Prediction]:
        """Return the most probable class of each image.

        Args:
            images: Anything that `inlay.data.load` reads: files, a folder, an array; or one image [H, W] or [H, W, C].
            skip_bad: Leave unreadable images out instead of refusing them.
            stream: Decode image files while predicting, as for `fit`.
        """
        return [best for best, *_ in self.rank(images, 1, skip_bad=skip_bad, stream=stream)]

    def rank(
        self, images: Any, top: int, *, skip_bad: bool = False, stream: bool | None = None
    ) -> list[list[Prediction]]:
        """Return the most probable classes of each image, the best first.

        Args:
            images: As for `predict`.
            top: Number of classes; all that can be predicted if there are no more.
            skip_bad: As for `predict`.
            stream: As for `predict`.
        """
        loaded = self._images(as_batch(images), skip_bad, stream, cache=False)
        probabilities = self.knowledge.logits(loaded).softmax(dim=1)
        best, ids = probabilities.topk(min(top, len(self.classes.active())), dim=1)
        entries = list(self.classes)
        return [
            [
                Prediction(source, i, entries[i].name, p, entries[i].kind == "discovered")
                for i, p in zip(ranked, values, strict=True)
            ]
            for source, ranked, values in zip(loaded.names, ids.tolist(), best.tolist(), strict=True)
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

    def clusters(self, stage: int | None = None, *, images: Any = None) -> tuple[SortedImage, ...]:
        """Return the images of a discovery stage with the classes they have now; see `inlay.clusters`.

        Args:
            stage: Number of the stage; None is the latest.
            images: Anything that `inlay.data.load` reads, the images of the stage among them; None looks where they
                were.

        Raises:
            InlayError: If it is no discovery stage, or its images are not found.
        """
        before, _, decisions = self._history.reviewed(self._number(stage))
        source = folder_of_stage(before) if images is None else images
        found = sorted_images(before, decisions, self.knowledge, self._images(source, skip_bad=True, stream=None))
        new = sum(image.verdict == "new" for image in found)
        if new < before.record.images:
            self.progress.note(f"Found {new:,} of the {before.record.images:,} images of stage {before.record.index}.")
        return found

    def report(
        self, path: str | Path | None = None, *, stage: int | None = None, images: Any = None, overwrite: bool = False
    ) -> Path:
        """Write what was found in a discovery stage as one HTML file, and return where.

        Args:
            path: File to write; None writes beside the run folder, over an earlier report of the stage.
            stage: Number of the stage; None is the latest.
            images: As for `clusters`.
            overwrite: Whether a file that is there may be replaced.

        Raises:
            InlayError: If it is no discovery stage, its images are not found, or the file may not be written.
        """
        number = self._number(stage)
        file, overwrite = self._report_file(path, number), overwrite or path is None
        check_output(file, overwrite)
        before, after, decisions = self._history.reviewed(number)
        if before.record.kind != "novel":
            raise InlayError(f"Stage {number} found no classes by itself; write the number of a discovery stage.")
        run = self._history.path
        page = render_stage(open_stage(before, after, decisions, images, self.progress), run.name if run else "")
        World.current().by_main(lambda: write_output(file, page, overwrite))
        return file

    def _report_file(self, path: str | Path | None, stage: int) -> Path:
        run = self._history.path
        if path is not None:
            return Path(path)
        if run is None:
            raise InlayError("The run is in memory only; write where the report is to go.")
        # "." has no name.
        run = run if run.name not in ("", "..") else run.resolve()
        return run.with_name(f"{run.name}.stage-{stage}.html")

    def _number(self, stage: int | None) -> int:
        latest = self._history.records[-1].index if self._history.records else -1
        number = latest if stage is None else stage
        if not 0 <= number <= latest:
            raise InlayError(f"There is no stage {number}; write a number from 1 to {latest}, or call fit first.")
        return number

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


def as_batch(images: Any) -> Any:
    """Return one image, an array [H, W] or [H, W, C], as a batch of one, and anything else as it is."""
    alone = is_array(images) and (images.ndim == 2 or (images.ndim == 3 and images.shape[-1] in (1, 3)))
    return images[None] if alone else images
