import io
import pickle
from typing import Any

import numpy as np
import pytest

from inlay.data import pickles
from inlay.data.pickles import PickledArray, read_pickle

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
# Eight bytes that would be the address of an object; at zero numpy sees None, so a failing test does no harm.
POINTER = b"C\x08" + bytes(8)
DTYPE = b"cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"


def read(content: bytes) -> Any:
    return read_pickle(io.BytesIO(content))


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("array", [PIXELS, np.asfortranarray(PIXELS), PIXELS[:, ::2], PIXELS[:1, :1, :1]])
def test_arrays_of_bytes(array: Any, protocol: int) -> None:
    found = read(pickle.dumps({"a": [array], b"n": 7}, protocol=protocol))
    assert found[b"n"] == 7
    np.testing.assert_array_equal(found["a"][0].values, array)
    assert found["a"][0].values.dtype == np.uint8


@pytest.mark.parametrize(
    "attack",
    [
        # An array of objects over bytes of the attacker's choice: reading it would follow them as pointers.
        b"cnumpy\nndarray\n((I1\ntS'O'\n" + POINTER + b"tR.",
        b"cnumpy\nndarray\n((I1\ntS'O'\n" + POINTER + b"t\x81.",
        b"(cnumpy\nndarray\n(I1\ntS'O'\n" + POINTER + b"o.",
        b"((I1\ntS'O'\n" + POINTER + b"inumpy\nndarray\n.",
    ],
)
def test_an_array_over_chosen_memory_is_never_built(attack: bytes) -> None:
    try:
        found = read(attack)
    except pickle.UnpicklingError:
        return
    assert isinstance(found, PickledArray) and found.values.size == 0


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (pickle.dumps(np.array([None]), protocol=2), r"an array in it has the type 'O8', not bytes"),
        (pickle.dumps(PIXELS.astype(np.int64), protocol=2), r"an array in it has the type 'i8', not bytes"),
        (ARRAY + b"(I1\n(I9\nt" + DTYPE + b"I00\nS'abc'\ntb.", "has 3 bytes, which is not what its shape needs"),
        (ARRAY + b"(I1\n(I-1\nI-3\nt" + DTYPE + b"I00\nS'abc'\ntb.", "has 3 bytes, which is not"),
        (ARRAY + b"(I1\n(S'3'\nt" + DTYPE + b"I00\nS'abc'\ntb.", "has 3 bytes, which is not"),
        (ARRAY + b"(I1\n(I0\nL99999999999999999999999L\nt" + DTYPE + b"I00\nS''\ntb.", "."),
        (ARRAY + b"(I1\n(I3\ntS'O'\nI00\nS'abc'\ntb.", "an array in it is not one of bytes"),
        (ARRAY + b"(I1\n(I3\nt" + DTYPE + b"I00\n(lI1\naI2\naI3\natb.", "an array in it is not one of bytes"),
        (ARRAY + b"(dS'values'\nI1\nsb.", "an array in it is not one of bytes"),
        (b"c_codecs\nencode\n(Vabc\nVzip\ntR.", "it asks for the encoding zip"),
        (b"cnumpy\nfrombuffer\n(S'abc'\ntR.", r"it asks for numpy\.frombuffer, which no file of arrays needs"),
        (b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", r"it asks for numpy\.ndarray\.tofile"),
        (b"cnumpy\nndarray\n(dS'values'\nI1\nsb.", "missing 1 required positional argument"),
        (b"", "Ran out of input"),
        (b"I1", "."),
        (b"\x80\x04" + b"\x8e" + b"\xff" * 8 + b".", "."),
    ],
)
def test_everything_else_is_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match=sentence):
        read(content)


def test_functions_cannot_be_changed() -> None:
    for state in (b"(dS'call'\nI1\ns", b"(N(dS'call'\nI1\nst"):
        with pytest.raises(pickle.UnpicklingError, match="it changes a function"):
            read(b"c_codecs\nencode\n" + state + b"b.")
    assert read(b"c_codecs\nencode\n(Vabc\nVlatin1\ntR.") == b"abc"


def test_no_callable_of_numpy_is_within_reach() -> None:
    for stand_in in pickles._STAND_INS.values():
        module = stand_in.__module__ if isinstance(stand_in, type) else stand_in.call.__module__
        assert module == "inlay.data.pickles"
