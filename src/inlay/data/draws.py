"""Random numbers that belong to an image and a step, whoever computes them and in whatever order."""

import math
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["Draws"]

_Word = TypeVar("_Word", int, Tensor)

_MASK = 0xFFFFFFFF
_START = 0x9E3779B9
# Words are hashed this many at a time, as a few large operations cost less than many small ones.
_BLOCK = 32


class Draws:
    """Random numbers for the rows of a batch, each a hash of the key, the row's index and its place in the stream.

    Every row has a stream of 32-bit words of its own, and every call takes the next words of all streams. So a row's
    numbers depend on nothing but the key, its index and the calls before; not on the other rows, their order, the
    device or the process. Two objects with the same key and indices repeat each other: views of the same images that
    are to differ need one object for both, or two keys.

    Only integer operations that never overflow make the words. Nothing waits for the device.

    Args:
        key: What sets one step apart from another: from 0 below 2**63, or such an int64 tensor [] on the device of
            the indices.
        indices: What sets one row apart from another, int64 [B], each from 0.

    Raises:
        ValueError: The key or the indices are something else.
    """

    def __init__(self, key: Tensor | int, indices: Tensor) -> None:
        if indices.ndim != 1 or indices.dtype != torch.int64:
            raise ValueError(f"indices must be int64 [B]; got {indices.dtype} {tuple(indices.shape)}")
        if isinstance(key, Tensor):
            if key.ndim or key.dtype != torch.int64 or key.device != indices.device:
                raise ValueError(f"key must be int64 [] on {indices.device}; got {key.dtype} on {key.device}")
            self._left, self._right = _streams(*_key_words(key), indices)
        else:
            if not 0 <= key < 2**63:
                raise ValueError(f"key must lie in 0..2**63 - 1; got {key}")
            self._left, self._right = _streams(*_key_words(key), indices)
        self._taken = 0
        self._block_start = 0
        self._block = indices.new_empty(len(indices), 0)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Draw numbers from low to high, float32 [B, *shape]."""
        return _unit(self._words(*shape)).mul_(high - low).add_(low)

    def normal(self, *shape: int) -> Tensor:
        """Draw numbers with mean 0 and variance 1, float32 [B, *shape], by the method of Box and Muller."""
        count = math.prod(shape)
        first, second = _unit(self._words(2, (count + 1) // 2)).unbind(dim=1)
        radius = (-2 * torch.log(1 - first)).sqrt()
        angle = 2 * math.pi * second
        both = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)
        return both[:, :count].reshape(-1, *shape)

    def choice(self, count: int, *shape: int) -> Tensor:
        """Draw whole numbers in 0..count - 1, int64 [B, *shape].

        Raises:
            ValueError: The count is outside 1..2**31.
        """
        if not 1 <= count <= 2**31:
            raise ValueError(f"count must lie in 1..2**31; got {count}")
        return self._words(*shape) * count >> 32

    def whole(self, reach: int, *shape: int) -> Tensor:
        """Draw whole numbers in -reach..reach, int64 [B, *shape]."""
        return self.choice(2 * reach + 1, *shape) - reach

    def chance(self, probability: float) -> Tensor:
        """Draw truth values that hold with a probability in 0..1, bool [B]."""
        return self._words() < round(probability * 2**32)

    def _words(self, *shape: int) -> Tensor:
        """The next words of each stream, 0..2**32 - 1, int64 [B, *shape]."""
        count = math.prod(shape)
        start = self._taken - self._block_start
        if start + count > self._block.shape[1]:
            start, self._block_start = 0, self._taken
            places = torch.arange(self._taken, self._taken + max(count, _BLOCK), device=self._left.device)
            self._block = _hashed(self._left, self._right, places)
        self._taken += count
        return self._block[:, start : start + count].reshape(-1, *shape)


def _key_words(key: _Word) -> tuple[_Word, _Word]:
    """Hash a key into two words."""
    first = _mixed(key & _MASK ^ _START)
    return first, _mixed(key >> 32 & _MASK ^ first)


def _streams(first: Tensor | int, second: Tensor | int, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Hash key words and indices into two words per row, [B]."""
    left = _mixed(indices & _MASK ^ second)
    return left, _mixed(indices >> 32 & _MASK ^ first ^ left)


def _hashed(left: Tensor, right: Tensor, places: Tensor) -> Tensor:
    """The words at some places [P] of all streams [B], [B, P]."""
    words = _stirred(left[:, None] ^ places, 17, 0xED5AD4BB) ^ right[:, None]
    words = _stirred(words, 11, 0xAC4C1B51)
    words = (words ^ words >> 15) * 0x31848BAB & _MASK
    return words ^ words >> 14


def _mixed(word: _Word) -> _Word:
    """Hash a word, so that each bit of the result depends on all bits of the word."""
    word = _stirred(_stirred(word, 16, 0x21F0AAAD), 15, 0xD35A2D97)
    return word * ((1 << 15) + 1) >> 15 & _MASK


def _stirred(word: _Word, shift: int, factor: int) -> _Word:
    """Add the upper bits of a word to the lower ones, then carry those up by an odd factor."""
    # The sum of a word and its shift is written with the word once: compilers that inline what is used twice would
    # double their work at every step. A large factor less 2**32 gives the same lower 32 bits; no product overflows.
    return (word * ((1 << shift) + 1) >> shift) * (factor - (factor >> 31 << 32)) & _MASK


def _unit(words: Tensor) -> Tensor:
    """Multiples of 2**-24 from 0 to just below 1, float32."""
    return (words >> 8).float() * 2**-24
