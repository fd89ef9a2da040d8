"""The manifest of a run folder: which files belong to it, and their checksums."""

import hashlib
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

from inlay.engine.checkpoint import JsonObject
from inlay.errors import InlayError
from inlay.sealed import changed_after_writing, read_sealed, write_sealed

__all__ = ["MANIFEST", "Manifest", "StageFiles", "file_checksum", "read_manifest", "write_manifest"]

MANIFEST = "inlay.json"
"""Name of the file; it is replaced whenever a run changes."""

_FORMAT = 1
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_EXTRA_FILE = re.compile(r"[a-z][a-z0-9_-]*\.json")


class StageFiles(TypedDict):
    """A finished stage: its number, the name of its folder, and the checksum of each file by relative path."""

    index: int
    name: str
    files: dict[str, str]


class Manifest(TypedDict):
    """All finished stages in order, and the checksums of the files beside them."""

    stages: list[StageFiles]
    extras: dict[str, str]


def read_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Args:
        path: The file.

    Raises:
        InlayError: If it is damaged, edited or written by a newer inlay.
    """
    value = read_sealed(path, _FORMAT)
    # A checksum proves nothing about who has written it, and the names here are those of files to read and to remove.
    if not _is_manifest(value):
        raise changed_after_writing(path)
    return {"stages": value["stages"], "extras": value["extras"]}


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write or replace a manifest in one step, with a checksum of its own.

    Args:
        path: The file.
        manifest: Its content.

    Raises:
        InlayError: If it cannot be written.
    """
    value: JsonObject = {"format": _FORMAT, "inlay": _version(), **manifest}
    write_sealed(path, value)


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal.

    Raises:
        InlayError: If it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InlayError(f"{path} cannot be read ({error.strerror}); make it readable.") from error


def _is_manifest(value: JsonObject) -> bool:
    stages, extras = value.get("stages"), value.get("extras")
    return (
        isinstance(stages, list)
        and all(_is_stage(stage, index) for index, stage in enumerate(stages))
        and _are_checksums(extras, _EXTRA_FILE)
    )


def _is_stage(value: Any, index: int) -> bool:
    if not isinstance(value, dict) or value.keys() != {"index", "name", "files"} or value["index"] != index:
        return False
    name = value["name"]
    if not isinstance(name, str) or not re.fullmatch(rf"{index:03d}-[a-z]+", name):
        return False
    return _are_checksums(value["files"], re.compile(rf"stages/{name}/[a-z]+\.[a-z]+"))


def _are_checksums(value: Any, file: re.Pattern[str]) -> bool:
    """Whether it is checksums by files of certain names."""
    return isinstance(value, dict) and all(
        file.fullmatch(name) and isinstance(checksum, str) and _CHECKSUM.fullmatch(checksum)
        for name, checksum in value.items()
    )


def _version() -> str:
    try:
        return version("inlay")
    except PackageNotFoundError:
        return "not installed"
