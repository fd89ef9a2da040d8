"""One step's work, as tensors alone."""

from dataclasses import dataclass, fields

from torch import Tensor

__all__ = ["Batch"]


@dataclass(frozen=True, eq=False)
class Batch:
    """The inputs of one step; every step of a loop has inputs of the same shapes.

    Attributes:
        images: Pixels of the rows of this process, uint8 [r, C, H, W].
        partners: Pixels for the second view of each row, uint8 [r, C, H, W]; `images` itself unless the loop was
            given companions.
        rows: Which images these are, int64 [r].
        indices: Which images all processes together have, int64 [B]; the same as `rows` with one process.
        key: Seed of the random draws of this step, int64 [].
    """

    images: Tensor
    partners: Tensor
    rows: Tensor
    indices: Tensor
    key: Tensor

    def copied(self) -> "Batch":
        """Return a batch of new tensors with the same contents; tensors that are one stay one."""
        copies = {id(tensor): tensor.clone() for tensor in self._tensors()}
        return Batch(*(copies[id(tensor)] for tensor in self._tensors()))

    def fill(self, other: "Batch") -> None:
        """Take over the contents of another batch of the same shapes, in place."""
        pairs = {id(mine): (mine, theirs) for mine, theirs in zip(self._tensors(), other._tensors(), strict=True)}
        for mine, theirs in pairs.values():
            mine.copy_(theirs)

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]
