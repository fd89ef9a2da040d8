"""The stages of a network on the disk: the state before the first merge, and the delta of each merge.

The list of stages is written last, in one step. A writer that is killed leaves the history as it was, with at
most a file that no stage names, which the next writer replaces.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor

from inlay.branches.delta import applied, dtype_name, fingerprint
from inlay.engine import checkpoint
from inlay.engine.checkpoint import JsonObject, writing
from inlay.errors import InlayError
from inlay.manifest import file_checksum
from inlay.sealed import changed_after_writing, read_sealed, write_sealed

__all__ = ["History", "Stage"]

_FORMAT = 1
_LIST = "history.json"
_LOCK = ".lock"


class _Layout(TypedDict):
    shape: list[int]
    dtype: str


class _Entry(TypedDict):
    """A stage: checksum of its file, fingerprint of the state after it, and facts."""

    file: str
    state: str
    facts: JsonObject


class _Content(TypedDict):
    """Layout of every tensor in order, and every stage, the base first."""

    tensors: dict[str, _Layout]
    stages: list[_Entry]


@dataclass(frozen=True)
class Stage:
    """One stage of a history.

    Attributes:
        history: The history.
        number: Number of the stage; 0 is the base.
    """

    history: "History"
    number: int

    def state(self) -> dict[str, Tensor]:
        """Replay the stage; see `History.state`."""
        return self.history.state(self.number)


class History:
    """The stages of one network in a folder; nothing is read or written before a method asks for it.

    Args:
        folder: Folder of the history; `record` makes it.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def stage_count(self) -> int:
        """Number of recorded stages, the base not counted; 0 as well where no history was begun.

        Raises:
            InlayError: If the folder holds something else, or the history is damaged.
        """
        content = self._content()
        return 0 if content is None else len(content["stages"]) - 1

    def record(self, before_state: Mapping[str, Tensor], delta: Mapping[str, Tensor], facts: Mapping[str, Any]) -> int:
        """Add a stage, beginning the history where the folder does not exist or is empty.

        Args:
            before_state: Every tracked tensor as it was before the stage; the base, where the history begins.
            delta: What the stage adds, already in its storage type (see `inlay.branches.delta.rounded`).
            facts: What JSON can hold, without NaN and infinities.

        Returns:
            Number of the stage, which begins at 1.

        Raises:
            InlayError: If the newest stage is not `before_state`, the delta belongs to another network, the
                folder holds something else, another process is writing, or the disk refuses. The history stays
                as it was.
            TypeError: If the facts hold what JSON cannot hold.
            ValueError: If the facts hold a number that is not finite.
        """
        kept_facts: JsonObject = json.loads(json.dumps(dict(facts), allow_nan=False))
        after = fingerprint(applied(before_state, delta))
        before = fingerprint(before_state)
        layouts = {name: _Layout(shape=list(t.shape), dtype=dtype_name(t.dtype)) for name, t in before_state.items()}
        # Refuse before the lock leaves its file in a folder that is not ours.
        self._require_newest(before, layouts)
        with self._lock():
            # Another process may have recorded a stage since the first look.
            content = self._require_newest(before, layouts)
            if content is None:
                file = self._write_stage(0, before_state)
                content = _Content(tensors=layouts, stages=[_Entry(file=file, state=before, facts={})])
            number = len(content["stages"])
            file = self._write_stage(number, delta)
            content["stages"].append(_Entry(file=file, state=after, facts=kept_facts))
            self._write_list(content)
        return number

    def state(self, stage: int) -> dict[str, Tensor]:
        """Replay the history from the base; nothing is ever subtracted.

        Args:
            stage: Number of the stage; 0 is the base.

        Returns:
            Every tracked tensor in the order in which it was recorded, on the CPU, bit for bit as it was.

        Raises:
            InlayError: If there is no such stage, or a file is missing or damaged.
        """
        content = self._required(stage)
        base = self._read_stage(0, content)
        state = {name: base[name] for name in content["tensors"]}
        for number in range(1, stage + 1):
            state = applied(state, self._read_stage(number, content))
        if fingerprint(state) != content["stages"][stage]["state"]:
            raise InlayError(
                f"Stage {stage} of {self.folder} does not come out bit for bit on this machine; replay it on the "
                f"kind of machine that recorded it."
            )
        return state

    def facts(self, stage: int) -> JsonObject:
        """Return the facts recorded with a stage; the base has none.

        Args:
            stage: Number of the stage; 0 is the base.

        Raises:
            InlayError: If there is no such stage.
        """
        return self._required(stage)["stages"][stage]["facts"]

    def stage(self, number: int) -> Stage:
        """Return one stage, to compare it with another.

        Args:
            number: Number of the stage; 0 is the base.

        Raises:
            InlayError: If there is no such stage.
        """
        self._required(number)
        return Stage(self, number)

    def truncate(self, stage: int) -> None:
        """Forget every stage after one, so that work can go on from there.

        Args:
            stage: Number of the last stage to keep; 0 keeps the base alone.

        Raises:
            InlayError: If there is no such stage, another process is writing, or the disk refuses.
        """
        self._required(stage)
        with self._lock():
            content = self._required(stage)
            forgotten = range(stage + 1, len(content["stages"]))
            del content["stages"][stage + 1 :]
            self._write_list(content)
            with writing(self.folder):
                for number in forgotten:
                    self._file(number).unlink(missing_ok=True)

    def _content(self) -> _Content | None:
        """Read the list of stages; None where a history could begin."""
        path = self.folder / _LIST
        if not os.path.lexists(path):
            self._refuse_occupied()
            return None
        value = read_sealed(path, _FORMAT)
        return {"tensors": value["tensors"], "stages": value["stages"]}

    def _refuse_occupied(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise InlayError(f"{self.folder} is a file; choose another folder for the history.")
        with writing(self.folder):
            names = {entry.name for entry in self.folder.iterdir()} if self.folder.exists() else set()
        if self._file(2).name in names:
            raise InlayError(f"{self.folder} is incomplete, as {_LIST} is missing; restore that file from a copy.")
        # What a writer that was killed before the first list of stages may have left.
        own = (_LOCK, self._file(0).name, self._file(1).name)
        if any(name not in own and not re.fullmatch(r"\..+\.tmp", name) for name in names):
            raise InlayError(f"{self.folder} is not empty and holds no history of stages; choose another folder.")

    def _required(self, stage: int) -> _Content:
        content = self._content()
        if content is None:
            raise InlayError(
                f"{self.folder} holds no history of stages; give the folder that inlay.branches.merge wrote."
            )
        newest = len(content["stages"]) - 1
        if not 0 <= stage <= newest:
            raise InlayError(f"{self.folder} has no stage {stage}; write a number from 0 to {newest}.")
        return content

    def _require_newest(self, before: str, layouts: Mapping[str, _Layout]) -> _Content | None:
        """Read the list of stages, after a look whether its newest stage is the state before this one."""
        content = self._content()
        if content is None:
            return None
        known = [entry["state"] for entry in content["stages"]]
        newest = len(known) - 1
        if before == known[newest]:
            return content
        if before in known:
            stage = known.index(before)
            raise InlayError(
                f"The history in {self.folder} has gone on from this network, its stage {stage}, to stage {newest}, "
                f"so that these branches may have been merged already; go on from stage {newest} with "
                f"inlay.branches.rollback, forget what follows with History.truncate({stage}), or use another folder."
            )
        what = _difference(content["tensors"], layouts) or f"with other weights than stages 0 to {newest}"
        raise InlayError(
            f"The history in {self.folder} belongs to another network, {what}; use another folder, or leave the same "
            f"modules to your own training as before."
        )

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            # A parent that may be passed through but not listed cannot be forced to the disk.
            with suppress(PermissionError):
                checkpoint.sync_folder(self.folder.absolute().parent)
            file = open(self.folder / _LOCK, "ab")  # noqa: SIM115 - the lock lives as long as the open file
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InlayError(
                    f"Another process is writing to {self.folder}; wait for it to end, or merge in one process only."
                ) from None
            yield

    def _write_list(self, content: _Content) -> None:
        write_sealed(self.folder / _LIST, {"format": _FORMAT, **content})

    def _write_stage(self, stage: int, tensors: Mapping[str, Tensor]) -> str:
        path = self._file(stage)
        checkpoint.write_tensors(path, tensors, {})
        return file_checksum(path)

    def _read_stage(self, stage: int, content: _Content) -> dict[str, Tensor]:
        path = self._file(stage)
        if not path.is_file():
            raise InlayError(f"{self.folder} is incomplete, as {path.name} is missing; restore that file from a copy.")
        if file_checksum(path) != content["stages"][stage]["file"]:
            raise changed_after_writing(path)
        return checkpoint.read_tensors(path)[0]

    def _file(self, stage: int) -> Path:
        return self.folder / (f"stage-{stage:03d}.safetensors" if stage else "base.safetensors")


def _difference(held: Mapping[str, _Layout], given: Mapping[str, _Layout]) -> str | None:
    for name in [*held, *given]:
        if name not in given:
            return f"one that has a tensor {name!r}"
        if name not in held:
            return f"one that has no tensor {name!r}"
        if held[name] != given[name]:
            return f"one whose tensor {name!r} is {held[name]['dtype']} of shape {held[name]['shape']}"
    return None
