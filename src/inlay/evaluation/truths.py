"""What the clusters of the discovery stages stand for, kept with the run."""

from collections.abc import Sequence

from inlay.data.images import Images
from inlay.evaluation.benchmark import StageTruth, match_stage
from inlay.evaluation.matching import Matching
from inlay.knowledge import StageRecord
from inlay.run_folder import RunFolder
from inlay.sealed import making_sense_of

__all__ = ["StageTruths", "given_truths"]

_EXTRA = "matching"


class StageTruths:
    """Matchings by stage: found once, then fixed.

    Args:
        run: Run folder they are kept in; None keeps them in memory.
    """

    def __init__(self, run: RunFolder | None = None) -> None:
        self._run = run
        self._found = self._read()

    def upto(self, stage: int) -> dict[int, StageTruth]:
        """Return the matchings of the stages up to and including one."""
        return {index: self._found[index] for index in sorted(self._found) if index <= stage}

    def match(self, records: Sequence[StageRecord], labelled: Images) -> bool:
        """Match the stages that were not matched yet; each is kept even if a later one fails.

        Args:
            records: All stages, the base stage first.
            labelled: The images of the discovery stages, with labels.

        Returns:
            Whether any stage was matched now.

        Raises:
            InlayError: If the images are not those of a stage.
        """
        given = given_truths(records)
        unmatched = [record for record in records[1:] if record.index not in {**given, **self._found}]
        for record in unmatched:
            others = {**given, **self._found}.values()
            known = [*records[0].class_names, *(name for truth in others for name in truth.names)]
            mixed = record.found is not None
            truth = match_stage(record.index, record.cluster_of(), len(record.class_names), labelled, known, mixed)
            self._keep({**self._found, record.index: truth})
        return bool(unmatched)

    def add(self, found: dict[int, StageTruth]) -> None:
        """Add the matchings of stages that have none here."""
        if found.keys() - self._found.keys():
            self._keep({**found, **self._found})

    def _keep(self, found: dict[int, StageTruth]) -> None:
        if self._run is None:
            self._found = found
            return
        with self._run.lock():
            # What another process has fixed since then stands.
            merged = {**found, **self._read()}
            self._run.write_extra(_EXTRA, [merged[index].to_json() for index in sorted(merged)])
        self._found = merged

    @making_sense_of("matching")
    def _read(self) -> dict[int, StageTruth]:
        entries = [] if self._run is None else self._run.read_extra(_EXTRA) or []
        truths = [StageTruth.from_json(entry) for entry in entries]
        return {truth.matching.stage: truth for truth in truths}


def given_truths(records: Sequence[StageRecord]) -> dict[int, StageTruth]:
    """Return what the classes of the stages with labels stand for, by stage: their own names."""
    taught = [record for record in records if record.kind == "labelled"]
    return {
        record.index: StageTruth(Matching(record.index, record.class_names, "train"), record.class_names)
        for record in taught
    }
