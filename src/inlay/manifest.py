"""The manifest of a run folder: which files belong to it, and their checksums."""

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

from inlay.engine.checkpoint import JsonObject
from inlay.errors import InlayError
from inlay.sealed import read_sealed, write_sealed

__all__ = ["Manifest", "StageFiles", "file_checksum", "read_manifest", "write_manifest"]

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
    value = read_sealed(path, _FORMAT)
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


def _version() -> str:
    try:
        return version("inlay")
    except PackageNotFoundError:
        return "not installed"
