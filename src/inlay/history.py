"""The stages that a learner has finished, in memory and in its run folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from inlay.errors import InlayError
from inlay.evaluation.truths import StageTruths
from inlay.knowledge import Knowledge, StageRecord
from inlay.run_folder import RunFolder
from inlay.saving import save_run

__all__ = ["History"]

_CHECKPOINT = "training.safetensors"


class History:
    """Finished stages, the latest of which is what the learner knows.

    Args:
        device: Where networks are put.
        backbone: Module of the user's own, if there is one.
        target: Folder in which the stages are to be kept; None keeps them in memory.

    Attributes:
        knowledge: Everything known after the latest stage; None before the first.
        records: What happened in each stage, the base stage first.
        truths: What the discovered classes stand for.

    Raises:
        InlayError: If something else than a run is in the folder.
    """

    def __init__(self, device: torch.device, backbone: nn.Module | None, target: Path | None = None) -> None:
        self.knowledge: Knowledge | None = None
        self.records: list[StageRecord] = []
        self.truths = StageTruths()
        self._device = device
        self._backbone = backbone
        self._target = target
        self._run: RunFolder | None = None
        self._unsaved: list[Knowledge] = []
        if target is not None and not RunFolder.exists(target):
            RunFolder(target).refuse_occupied()

    @classmethod
    def load(cls, path: Path, stage: int | None, device: torch.device, backbone: nn.Module | None) -> "History":
        """Open a run folder.

        Args:
            path: The folder.
            stage: The latest stage to take; None takes all.
            device: Where networks are put.
            backbone: The module of the run, if it was made with one of the user's own.

        Raises:
            InlayError: If the folder is not a whole run, or the module does not fit.
        """
        run = RunFolder.open(path)
        history = cls(device, backbone, path)
        history._keep_in(run)
        history.knowledge = Knowledge.from_files(*run.read(-1 if stage is None else stage), device, backbone)
        known = history.knowledge.record.index + 1
        history.records = [StageRecord.from_json(run.read_facts(index)["stage"]) for index in range(known)]
        return history

    def has_base(self, identity: str) -> bool:
        """Whether the target folder has a base stage already, with this identity.

        Raises:
            InlayError: If it has another one.
        """
        run = self._present()
        if run is None or run.stage_count == 0:
            return False
        if run.read_facts(0)["stage"]["identity"] != identity:
            run.refuse_occupied()
        return True

    def begin(self) -> None:
        """Make the target folder, if there is to be one.

        Raises:
            InlayError: If something else is there, or the folder cannot be written.
        """
        if self._target is not None:
            self._keep_in(RunFolder.create(self._target))

    def add(self, knowledge: Knowledge) -> StageRecord:
        """Make a finished stage the present one, on the disk first."""
        record = knowledge.record
        if self._run is None:
            self._unsaved.append(knowledge)
        else:
            kind: Literal["base", "novel"] = "novel" if record.index else "base"
            self._run.commit(record.index, kind, *knowledge.to_files())
        self.knowledge = knowledge
        self.records.append(record)
        return record

    def finished(self, identity_at: Callable[[int], str]) -> int | None:
        """Return the number of the finished discovery stage that would be repeated; None if there is none.

        Args:
            identity_at: Identity that the stage asked for would have as the stage with a given number.

        Raises:
            InlayError: If the run folder has other stages after the present one.
        """
        for record in self.records[1:]:
            if record.identity == identity_at(record.index):
                return record.index
        index = len(self.records)
        if self._run is None or self._run.stage_count <= index:
            return None
        if self._run.read_facts(index)["stage"]["identity"] != identity_at(index):
            raise InlayError(f"{self._run.path} has later stages; load it anew, without a stage number.")
        return index

    def take_over(self, index: int) -> StageRecord:
        """Make a finished stage of the folder the present one, unless it or a later one is.

        Args:
            index: Number of the stage, at most one more than that of the present stage.
        """
        if index == len(self.records):
            if self._run is None:
                assert self._target is not None
                self._keep_in(RunFolder.open(self._target))
            assert self._run is not None
            self.knowledge = Knowledge.from_files(*self._run.read(index), self._device, self._backbone)
            self.records.append(self.knowledge.record)
        return self.records[index]

    def save(self, path: Path) -> None:
        """Write all stages to a folder, or those that it lacks.

        Raises:
            InlayError: If the folder holds something else.
        """
        run = self._run
        if run is not None and run.path.resolve() == path.resolve():
            return
        stages = [
            self._unsaved[index].to_files() if run is None else run.read(index) for index in range(len(self.records))
        ]
        StageTruths(save_run(path, stages)).add(self.truths.upto(self.records[-1].index))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to the run folder until the context ends.

        Raises:
            InlayError: If another process is writing.
        """
        if self._run is None:
            yield
        else:
            with self._run.lock():
                yield

    def checkpoint(self) -> Path | None:
        """Return where the stage under way keeps its state; None keeps it nowhere."""
        return None if self._run is None else self._run.progress_path(_CHECKPOINT)

    def stopped(self) -> Path | None:
        """Return the state that a stopped stage has kept, if there is one; nothing is written."""
        run = self._present()
        kept = [] if run is None else run.path.glob(f"progress/{run.stage_count:03d}-{_CHECKPOINT}")
        return next(iter(kept), None)

    def drop_progress(self) -> None:
        """Drop the state that a stopped stage has kept."""
        run = self._present()
        if run is not None:
            run.clear_progress()

    def _present(self) -> RunFolder | None:
        if self._run is None and self._target is not None and RunFolder.exists(self._target):
            return RunFolder.open(self._target)
        return self._run

    def _keep_in(self, run: RunFolder) -> None:
        self._run, self.truths = run, StageTruths(run)
