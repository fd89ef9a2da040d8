"""Randomness that is a function of what it is for.

Every draw comes from a generator seeded by the seed of the run and the place of the draw (stage, loop, step).
Nothing random has to be saved, and a run that goes on after a stop draws what it would have drawn.
"""

import hashlib

import torch

__all__ = ["derive_seed", "generator"]


def derive_seed(seed: int, *place: str | int) -> int:
    """Return a 63-bit seed for one place of a run; other places get unrelated seeds."""
    text = "/".join(str(part) for part in (seed, *place))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def generator(seed: int, *place: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a new generator for one place of a run."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *place))
