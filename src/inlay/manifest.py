"""The manifest of a run folder: which files belong to it, and their checksums."""

import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

from inlay.engine import checkpoint
from inlay.engine.checkpoint import JsonObject
from inlay.errors import InlayError

__all__ = ["Manifest", "StageFiles", "changed_after_writing", "file_checksum", "read_manifest", "write_manifest"]

_FORMAT = 1


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
    value = checkpoint.read_json(path)
    number = value.get("format") if isinstance(value, dict) else None
    if type(number) is not int:
        raise changed_after_writing(path)
    if number > _FORMAT:
        raise InlayError(
            f"{path.parent} was written by a newer inlay, in format {number}; update inlay "
            f"with `pip install --upgrade inlay`."
        )
    if value.pop("checksum", None) != _own_checksum(value):
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
    checkpoint.write_json(path, {**value, "checksum": _own_checksum(value)})


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


def changed_after_writing(path: Path) -> InlayError:
    """Return the error for a file that does not match its checksum."""
    return InlayError(f"{path} was changed after it was written (edited by hand or damaged); restore it from a copy.")


def _own_checksum(value: JsonObject) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _version() -> str:
    try:
        return version("inlay")
    except PackageNotFoundError:
        return "not installed"
