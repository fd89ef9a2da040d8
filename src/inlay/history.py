"""The stages that a learner has finished, in memory and in its run folder."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from inlay.calibration import Calibration
from inlay.decided import copy_decisions, decided, decisions_state, kept_decisions
from inlay.decisions import Decision
from inlay.engine.checkpoint import sync_folder, writing
from inlay.engine.world import World
from inlay.errors import InlayError
from inlay.evaluation.truths import StageTruths
from inlay.knowledge import Knowledge, StageRecord
from inlay.run_folder import RunFolder
from inlay.saving import save_run
from inlay.sealed import making_sense_of

__all__ = ["History", "drop_stages"]

_CHECKPOINT = "training.safetensors"
_MATCHING = "matching"
_CALIBRATION = "calibration"
_DROPPED = "dropped"


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
        calibration: What the run knows of its own errors; None if nothing was kept out of training.

    Raises:
        InlayError: If something else than a run is in the folder.
    """

    def __init__(self, device: torch.device, backbone: nn.Module | None, target: Path | None = None) -> None:
        self.knowledge: Knowledge | None = None
        self.records: list[StageRecord] = []
        self.truths = StageTruths()
        self.calibration: Calibration | None = None
        self._device = device
        self._backbone = backbone
        self._target = target
        self._run: RunFolder | None = None
        self._unsaved: list[Knowledge] = []
        self._decisions = ""
        if target is not None and not RunFolder.exists(target):
            RunFolder(target).refuse_occupied()

    @classmethod
    @making_sense_of("stage")
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
        history.knowledge = history._read(run, -1 if stage is None else stage)
        known = history.knowledge.record.index + 1
        history.records = [StageRecord.from_json(run.read_facts(index)["stage"]) for index in range(known)]
        return history

    @making_sense_of("stage")
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

    def keep_calibration(self, calibration: Calibration) -> None:
        """Remember what the run knows of its own errors, on the disk first."""
        if self._run is not None:
            self._run.write_extra(_CALIBRATION, calibration.to_json())
        self.calibration = calibration

    def finished(self, identity_at: Callable[[int], str]) -> int | None:
        """Return the number of the finished discovery stage that would be repeated; None if there is none.

        Args:
            identity_at: Identity that the stage asked for would have as the stage with a given number.

        Raises:
            InlayError: If the run folder has other stages than the present ones.
        """
        self._check_unchanged()
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
            self.knowledge = self._read(self._run, index)
            self.records.append(self.knowledge.record)
        return self.records[index]

    @property
    def place(self) -> Path | None:
        """Where the run folder is, or will be once there is a stage; None if the stages are in memory."""
        return self._target if self._run is None else self._run.path

    @property
    def path(self) -> Path | None:
        """The run folder; None if the stages are in memory."""
        return None if self._run is None else self._run.path

    def reviewed(self, index: int) -> tuple[Knowledge, Knowledge, list[Decision]]:
        """Return what a stage itself left behind, what is known after the decisions about it, and the decisions.

        Args:
            index: Number of a stage up to the present one.

        Raises:
            InlayError: If the stage is damaged.
        """
        present = self.knowledge
        if self._run is None:
            return self._unsaved[index], self._unsaved[index], []
        if present is not None and present.record.index == index and not kept_decisions(self._run, present):
            return present, present, []
        before = Knowledge.from_files(*self._run.read(index), self._device, self._backbone)
        return before, decided(self._run, before), kept_decisions(self._run, before)

    def rollback(self, to: int) -> tuple[StageRecord, ...]:
        """Go back to an earlier stage; a run folder keeps the run as it was under `dropped`.

        Args:
            to: Number of the stage, which becomes the latest one.

        Returns:
            The stages that were dropped; empty if it is the latest one already.

        Raises:
            InlayError: If there is no such stage, it is damaged, or the folder cannot be written.
        """
        run = self._run
        with self.locked():
            count = len(self._unsaved) if run is None else run.stage_count
            if count == 0:
                raise InlayError("Nothing was learned yet, so there is no stage to go back to; call fit first.")
            if not 0 <= to < count:
                raise InlayError(f"There is no stage {to} to go back to; write a number from 0 to {count - 1}.")
            if run is None:
                kept, records = self._unsaved[to], [knowledge.record for knowledge in self._unsaved]
            else:
                # Read before anything is dropped, as it may be damaged.
                kept = self._read(run, to)
                records = [StageRecord.from_json(run.read_facts(index)["stage"]) for index in range(count)]
            if to < count - 1:
                self._drop_after(to)
        self.knowledge, self.records = kept, records[: to + 1]
        return tuple(records[to + 1 :])

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
        saved = save_run(path, stages)
        StageTruths(saved).add(self.truths.upto(self.records[-1].index))
        if run is not None:
            copy_decisions(run, saved)
        if self.calibration is not None:
            saved.write_extra(_CALIBRATION, self.calibration.to_json())

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

    def _check_unchanged(self) -> None:
        """Refuse to go on from stages that another process has dropped since they were loaded."""
        if self._run is None:
            return
        latest = self.records[-1]
        there = self._run.stage_count > latest.index
        if not there or self._run.read_facts(latest.index)["stage"]["identity"] != latest.identity:
            raise InlayError(f"{self._run.path} was rolled back by another process; load it anew.")
        if decisions_state(self._run) != self._decisions:
            raise InlayError(f"Classes of {self._run.path} were reviewed since it was loaded; load it anew.")

    def _drop_after(self, to: int) -> None:
        if self._run is None:
            truths = self.truths.upto(to)
            self._unsaved, self.truths = self._unsaved[: to + 1], StageTruths()
            self.truths.add(truths)
        else:
            drop_stages(self._run, to)
            self._keep_in(self._run)

    def _read(self, run: RunFolder, stage: int) -> Knowledge:
        """Read what is known after a stage and the decisions about it."""
        return decided(run, Knowledge.from_files(*run.read(stage), self._device, self._backbone))

    def _present(self) -> RunFolder | None:
        if self._run is None and self._target is not None and RunFolder.exists(self._target):
            return RunFolder.open(self._target)
        return self._run

    def _keep_in(self, run: RunFolder) -> None:
        self._run, self.truths = run, StageTruths(run)
        self._decisions = decisions_state(run)
        kept = run.read_extra(_CALIBRATION)
        self.calibration = None if kept is None else Calibration.from_json(kept)


def drop_stages(run: RunFolder, to: int) -> None:
    """Drop the stages of a run after one, and their matchings; the run as it was is kept under `dropped`.

    A run killed at any moment is found with all of its stages or with those that are to stay.

    Args:
        run: The run.
        to: Number of the last stage to keep.

    Raises:
        InlayError: If the folder cannot be written or another process is writing.
    """
    with run.lock():
        World.current().by_main(lambda: _set_aside(run.path))
        # Before the stages: what a stopped stage had kept would be taken up by another one of the same number.
        run.clear_progress()
        matchings = [truth.to_json() for truth in StageTruths(run).upto(to).values()]
        run.truncate(to + 1, {} if run.read_extra(_MATCHING) is None else {_MATCHING: matchings})


def _set_aside(run: Path) -> None:
    """Keep a run as it is now, as a run of its own within its folder."""
    folder = run / _DROPPED
    unfinished = folder / ".unfinished"
    with writing(folder):
        folder.mkdir(exist_ok=True)
        if unfinished.exists():
            shutil.rmtree(unfinished)
        others = shutil.ignore_patterns(_DROPPED, ".lock", ".*.tmp")
        shutil.copytree(run, unfinished, symlinks=True, ignore=others, copy_function=_link)
        numbers = [int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()]
        os.rename(unfinished, folder / f"{max(numbers, default=0) + 1:03d}")
        sync_folder(folder)


def _link(source: str, target: str) -> None:
    try:
        # No file of a run is ever written in place, so two runs may share one.
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without links
        shutil.copy2(source, target, follow_symlinks=False)
