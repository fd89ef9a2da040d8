"""JSON files with a format number and a checksum of their own content."""

import hashlib
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from inlay.engine import checkpoint
from inlay.engine.checkpoint import JsonObject
from inlay.errors import InlayError

__all__ = ["changed_after_writing", "making_sense_of", "read_sealed", "write_sealed"]

# What Python and the formats raise on values of another kind than they were written with.
_NONSENSE = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    zlib.error,
    SafetensorError,
)


def read_sealed(path: Path, newest_format: int) -> JsonObject:
    """Read what `write_sealed` wrote.

    Args:
        path: The file.
        newest_format: The newest format that can be read.

    Raises:
        InlayError: If it is damaged, edited or written by a newer inlay.
    """
    value: Any = checkpoint.read_json(path)
    number = value.get("format") if isinstance(value, dict) else None
    if type(number) is not int:
        raise changed_after_writing(path)
    if number > newest_format:
        raise InlayError(
            f"{path.parent} was written by a newer inlay, in format {number}; update inlay "
            f"with `pip install --upgrade inlay`."
        )
    if value.pop("checksum", None) != _checksum(value):
        raise changed_after_writing(path)
    content: JsonObject = value
    return content


def write_sealed(path: Path, value: JsonObject) -> None:
    """Write or replace a file in one step, with a checksum of its own.

    Args:
        path: The file.
        value: Its content, with its format number as "format".

    Raises:
        InlayError: If it cannot be written.
    """
    checkpoint.write_json(path, {**value, "checksum": _checksum(value)})


def changed_after_writing(path: Path) -> InlayError:
    """Return the error for a file that does not match its checksum."""
    return InlayError(f"{path} was changed after it was written (edited by hand or damaged); restore it from a copy.")


@contextmanager
def making_sense_of(what: str) -> Iterator[None]:
    """Turn errors over values that inlay does not write into a sentence, since a checksum can be made by anybody.

    Args:
        what: What is made of the values, such as "stage".

    Raises:
        InlayError: In place of those errors.
    """
    try:
        yield
    except _NONSENSE as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InlayError(
            f"A {what} of the run was damaged or edited by hand ({reason}); restore the run folder from a copy."
        ) from error


def _checksum(value: JsonObject) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
