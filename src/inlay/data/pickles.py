"""Pickles of byte arrays, read without running anything they ask for."""

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from inlay.data.pixels import Pixels

__all__ = ["PickledArray", "read_pickle"]


class PickledArray:
    """Stands in for numpy's array, which a pickle could have built over memory of its choice.

    Attributes:
        values: The bytes of the array in its shape.
    """

    values: Pixels = np.empty(0, dtype=np.uint8)

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple(shape), _Dtype(), int(columns_first), bytes() | str() as content):
                pass
            case _:
                raise pickle.UnpicklingError("an array in it is not one of bytes")
        # A byte string of Python 2 arrives as text.
        raw = content.encode("latin1") if isinstance(content, str) else content
        if not all(isinstance(side, int) and side >= 0 for side in shape) or math.prod(shape) != len(raw):
            raise pickle.UnpicklingError(f"an array in it has {len(raw)} bytes, which is not what its shape needs")
        self.values = np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if columns_first else "C")


class _Dtype:
    """Stands in for numpy's type of bytes, the only one there is here."""

    def __init__(self, code: object, *options: object) -> None:
        if code != "u1":
            raise pickle.UnpicklingError(f"an array in it has the type {code!r}, not bytes")

    def __setstate__(self, state: object) -> None:
        """Byte order and the like mean nothing to bytes."""


@dataclass(frozen=True)
class _Function:
    """A function that a pickle can call but not change."""

    call: Callable[..., object]

    def __call__(self, *arguments: object) -> object:
        return self.call(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it changes a function")


def _reconstruct(kind: object, shape: object, code: object) -> PickledArray:
    """Stands in for numpy's maker of empty arrays, which are filled afterwards."""
    return PickledArray()


def _encode(text: str, encoding: str) -> bytes:
    """Stands in for the general encoder by which Python 3 writes byte strings into old pickle formats."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding}")
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Function(_reconstruct),
    ("numpy._core.multiarray", "_reconstruct"): _Function(_reconstruct),
    ("_codecs", "encode"): _Function(_encode),
}


class _StandInsOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no file of arrays needs")
        return _STAND_INS[module, name]


def read_pickle(stream: BinaryIO) -> object:
    """Read a pickle of plain containers, numbers, texts and arrays of bytes, written by Python 2 or 3.

    Args:
        stream: A binary file open for reading.

    Returns:
        The content, with each array as a `PickledArray`.

    Raises:
        UnpicklingError: The pickle is damaged, or names anything else; nothing of it was run.
    """
    try:
        return _StandInsOnly(stream, encoding="latin1").load()
    except (EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError) as error:
        raise pickle.UnpicklingError(str(error) or "damaged file") from error
    except RecursionError as error:
        raise pickle.UnpicklingError("it is nested too deeply") from error
