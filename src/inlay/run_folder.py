"""The folder of a run: its finished stages, what goes with them, and the work under way.

A manifest lists every finished file with its checksum. A stage counts from the moment the manifest lists it,
and the manifest is replaced in one step, so a run killed at any moment is found before or after a stage and
never between. No path in it is absolute: the folder may be moved or copied.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, cast

from torch import Tensor

from inlay.engine import checkpoint
from inlay.engine.checkpoint import JsonObject, writing
from inlay.engine.world import World
from inlay.errors import InlayError
from inlay.manifest import MANIFEST, Manifest, StageFiles, file_checksum, read_manifest, write_manifest
from inlay.run_lock import LOCK, held_lock
from inlay.sealed import changed_after_writing

__all__ = ["RunFolder"]

_STAGES = "stages"
_PROGRESS = "progress"
_TENSORS = "tensors.safetensors"
_FACTS = "stage.json"
_STAGE_FOLDER = re.compile(r"\d{3,}-(base|novel)|\.\d{3,}-(base|novel)\.tmp")
_EXTRA_NAME = re.compile(r"[a-z][a-z0-9_-]*")


class RunFolder:
    """A run on the disk; get one from `create` or `open`.

    With several processes every one of them calls what writes, and the main one writes.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._locked = False

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """Begin a run, or take up one whose first stage was never finished, with its progress.

        Args:
            path: A folder that does not exist, is empty, or holds a run without a finished stage.

        Returns:
            The run, without stages.

        Raises:
            InlayError: If something else is there, or the folder cannot be written.
        """
        run = cls(path)
        run.refuse_occupied()
        World.current().by_main(run._make_folder)
        with run.lock():
            World.current().by_main(run._begin)
        return run

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open a run, reading only.

        Args:
            path: The folder of the run.

        Returns:
            The run, whose manifest is whole and whose files are all there.

        Raises:
            InlayError: If there is no run, or it is damaged, incomplete or of a newer inlay.
        """
        run = cls(path)
        if not cls.exists(path):
            what = "is a file, not" if os.path.isfile(path) else "is not"
            raise InlayError(f"{path} {what} an inlay run folder; make one with `inlay fit DATA --out NAME`.")
        manifest = run._manifest()
        files = [file for stage in manifest["stages"] for file in stage["files"]]
        for relative in files + [file for file in manifest["extras"] if not run._staged(file).is_file()]:
            run._require_file(relative)
        return run

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether a run was begun in the folder `path`."""
        return os.path.isfile(path / MANIFEST)

    @property
    def stage_count(self) -> int:
        """Number of finished stages, the base stage among them."""
        return len(self._manifest()["stages"])

    def commit(
        self, index: int, kind: Literal["base", "novel"], tensors: Mapping[str, Tensor], facts: JsonObject
    ) -> None:
        """Add a finished stage and drop the progress that led to it, in one step as a reader sees it.

        Args:
            index: Number of the stage, which must be the number of stages so far.
            kind: Whether the stage learned base classes or novel ones.
            tensors: Any tensors by name.
            facts: What JSON can hold, without NaN and infinities.

        Raises:
            InlayError: If the folder cannot be written or another process is writing; what was there stays whole.
            ValueError: If the index is not the next one.
        """
        with self.lock():
            World.current().by_main(lambda: self._commit(index, kind, tensors, facts))

    def read(self, index: int = -1, verify: bool = True) -> tuple[dict[str, Tensor], JsonObject]:
        """Read a finished stage.

        Args:
            index: Number of the stage; negative numbers count from the end.
            verify: Whether to compare the files with their checksums.

        Returns:
            The tensors and facts that were committed.

        Raises:
            InlayError: If there is no such stage, or its files are missing or changed.
        """
        folder = self._stage_folder(index, (_TENSORS, _FACTS), verify)
        tensors, _ = checkpoint.read_tensors(folder / _TENSORS)
        return tensors, cast(JsonObject, checkpoint.read_json(folder / _FACTS))

    def read_facts(self, index: int = -1) -> JsonObject:
        """Read the facts of a finished stage alone, which is quick; the rest is as for `read`."""
        return cast(JsonObject, checkpoint.read_json(self._stage_folder(index, (_FACTS,), verify=True) / _FACTS))

    def write_extra(self, name: str, value: Any) -> None:
        """Write or replace a JSON file beside the manifest, in one step as `read_extra` sees it.

        Args:
            name: Name of the file without `.json`, such as "matching".
            value: What JSON can hold, without NaN and infinities.

        Raises:
            InlayError: If the folder cannot be written or another process is writing.
            ValueError: If the name is not in lower case, or the manifest's own.
        """
        relative = _extra_file(name)
        with self.lock():
            World.current().by_main(lambda: self._rewrite(None, {relative: value}))

    def truncate(self, stages: int, extras: Mapping[str, Any]) -> None:
        """Drop all but the first stages and replace extras, in one step as a reader sees it.

        Args:
            stages: Number of stages to keep.
            extras: What JSON can hold by name of the extra, see `write_extra`.

        Raises:
            InlayError: If the folder cannot be written or another process is writing; what was there stays whole.
        """
        files = {_extra_file(name): value for name, value in extras.items()}
        with self.lock():
            World.current().by_main(lambda: self._rewrite(stages, files))

    def read_extra(self, name: str) -> Any | None:
        """Read a file of `write_extra`.

        Args:
            name: Name of the file without `.json`.

        Returns:
            The value in it; None if it was never written.

        Raises:
            InlayError: If the file is missing or was changed.
            ValueError: If the name is not in lower case, or the manifest's own.
        """
        relative = _extra_file(name)
        checksum = self._manifest()["extras"].get(relative)
        if checksum is None:
            return None
        # A writer killed between manifest and rename leaves the file under its staged name.
        for file in (self.path / relative, self._staged(relative)):
            if file.is_file() and file_checksum(file) == checksum:
                return checkpoint.read_json(file)
        self._require_file(relative)
        raise changed_after_writing(self.path / relative)

    def progress_path(self, name: str) -> Path:
        """Where work on the next stage keeps a checkpoint; the folder of it is made.

        The file's name begins with the number of the stage, so that what a killed commit left behind is never
        taken for progress of the stage after it.

        Args:
            name: Name of the file.

        Returns:
            Its path.

        Raises:
            InlayError: If the folder cannot be made.
            ValueError: If the name is no plain file name.
        """
        if Path(name).name != name:
            raise ValueError(f"a progress file needs a plain name, not {name!r}")
        folder = self.path / _PROGRESS
        with writing(folder):
            folder.mkdir(exist_ok=True)
        return folder / f"{self.stage_count:03d}-{name}"

    def clear_progress(self) -> None:
        """Drop the checkpoints of work under way.

        Raises:
            InlayError: If they cannot be removed or another process is writing.
        """
        with self.lock():
            World.current().by_main(self._drop_progress)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing to this run until the context ends or this process does.

        Every method that writes takes the lock itself; hold it around work that spans several of them.

        Raises:
            InlayError: If another process holds it, or the folder cannot be written.
        """
        if self._locked:
            yield
            return
        with ExitStack() as held:
            World.current().by_main(lambda: held.enter_context(held_lock(self.path)))
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def refuse_occupied(self) -> None:
        """Make sure that a run could begin in the folder.

        Raises:
            InlayError: If a finished stage or something else is there.
        """
        if os.path.isfile(self.path):
            raise InlayError(f"{self.path} is a file; choose another --out.")
        # Listed before the look for a manifest, as another process of the group may begin the run meanwhile.
        entries = _entries(self.path)
        if self.exists(self.path):
            if RunFolder.open(self.path).stage_count > 0:
                raise InlayError(
                    f"{self.path} already holds a run; choose another --out, or add classes to it with "
                    f"`inlay discover`."
                )
        elif not all(_is_from_killed_create(entry) for entry in entries):
            raise InlayError(f"{self.path} is not empty and holds no inlay run; choose another --out.")

    def _make_folder(self) -> None:
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            # A parent that may be passed through but not listed cannot be forced to the disk.
            with suppress(PermissionError):
                checkpoint.sync_folder(self.path.parent)

    def _begin(self) -> None:
        # Another process may have finished a stage here since the first look.
        self.refuse_occupied()
        if not self.exists(self.path):
            self._write_manifest({"stages": [], "extras": {}})

    def _commit(self, index: int, kind: str, tensors: Mapping[str, Tensor], facts: JsonObject) -> None:
        with writing(self.path):
            manifest = self._manifest()
            if index != len(manifest["stages"]):
                raise ValueError(f"the next stage is {len(manifest['stages'])}, not {index}")
            self._tidy()
            name = f"{index:03d}-{kind}"
            try:
                files = self._write_stage(name, tensors, facts)
                stages = [*manifest["stages"], StageFiles(index=index, name=name, files=files)]
                self._write_manifest({"stages": stages, "extras": manifest["extras"]})
            except BaseException:
                self._tidy()
                raise
            self._drop_progress()

    def _rewrite(self, stages: int | None, extras: Mapping[str, Any]) -> None:
        with writing(self.path):
            self._tidy()
            try:
                manifest = self._manifest()
                manifest["stages"] = manifest["stages"][:stages]
                for relative, value in extras.items():
                    checkpoint.write_json(self._staged(relative), value)
                    manifest["extras"][relative] = file_checksum(self._staged(relative))
                self._write_manifest(manifest)
            finally:
                self._tidy()

    def _drop_progress(self) -> None:
        folder = self.path / _PROGRESS
        with writing(folder):
            for entry in _entries(folder):
                _remove(entry)

    def _stage_folder(self, index: int, wanted: tuple[str, ...], verify: bool) -> Path:
        """Folder of a finished stage, after a look at the wanted files in it."""
        stages = self._manifest()["stages"]
        if not stages:
            raise InlayError(f"{self.path} has no finished stage yet; repeat the `inlay fit` that began it.")
        if not -len(stages) <= index < len(stages):
            raise InlayError(f"{self.path} has no stage {index}; write a number from 0 to {len(stages) - 1}.")
        for relative, checksum in stages[index]["files"].items():
            if Path(relative).name in wanted:
                self._require_file(relative)
                if verify and file_checksum(self.path / relative) != checksum:
                    raise changed_after_writing(self.path / relative)
        return self.path / _STAGES / stages[index]["name"]

    def _manifest(self) -> Manifest:
        return read_manifest(self.path / MANIFEST)

    def _write_manifest(self, manifest: Manifest) -> None:
        write_manifest(self.path / MANIFEST, manifest)

    def _write_stage(self, name: str, tensors: Mapping[str, Tensor], facts: JsonObject) -> dict[str, str]:
        stages = self.path / _STAGES
        stages.mkdir(exist_ok=True)
        temporary, final = stages / f".{name}.tmp", stages / name
        temporary.mkdir()
        checkpoint.write_tensors(temporary / _TENSORS, tensors, {})
        checkpoint.write_json(temporary / _FACTS, facts)
        files = {f"{_STAGES}/{name}/{file}": file_checksum(temporary / file) for file in (_FACTS, _TENSORS)}
        os.rename(temporary, final)
        checkpoint.sync_folder(stages)
        return files

    def _tidy(self) -> None:
        """Finish or remove what a killed writer left, going by the manifest on the disk."""
        manifest = self._manifest()
        checkpoint.remove_leftovers(self.path)
        listed = {stage["name"] for stage in manifest["stages"]}
        for entry in _entries(self.path / _STAGES):
            if entry.name not in listed and _STAGE_FOLDER.fullmatch(entry.name):
                _remove(entry)
        for staged in self.path.glob(".*.json.next"):
            relative = staged.name.removeprefix(".").removesuffix(".next")
            if manifest["extras"].get(relative) == file_checksum(staged):
                os.replace(staged, self.path / relative)
                checkpoint.sync_folder(self.path)
            else:
                staged.unlink()

    def _staged(self, relative: str) -> Path:
        return self.path / f".{relative}.next"

    def _require_file(self, relative: str) -> None:
        if not (self.path / relative).is_file():
            raise InlayError(f"{self.path} is incomplete, as {relative} is missing; restore that file from a copy.")


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def _entries(folder: Path) -> list[Path]:
    with writing(folder):
        return list(folder.iterdir()) if os.path.isdir(folder) else []


def _is_from_killed_create(entry: Path) -> bool:
    return entry.name == LOCK or entry.match(f".{MANIFEST}.*.tmp")


def _extra_file(name: str) -> str:
    file = f"{name}.json"
    if not _EXTRA_NAME.fullmatch(name) or file == MANIFEST:
        raise ValueError(f"the name of an extra must be in lower case and not the manifest's, not {name!r}")
    return file
