"""Features of images that were kept out of training: what a run can judge itself by when the images are gone."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.discovery.drift import Drift
from inlay.engine.randomness import generator

__all__ = ["HeldOut", "after_a_stage"]

_MOST = 1000


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Features of images of base classes.

    Attributes:
        features: Their features, [n, D], float32, rounded to half precision.
        labels: Their classes, int64 [n].
        exact: Whether the features are by the network as it is, and not only expected of it.
    """

    features: Tensor
    labels: Tensor
    exact: bool = True

    def __len__(self) -> int:
        return len(self.features)

    @classmethod
    def drawn(cls, features: Tensor, labels: Tensor, seed: int) -> "HeldOut | None":
        """Keep at most 1,000 images, drawn at random; none where half precision cannot hold their features.

        Args:
            features: Features, [N, D].
            labels: Their classes, [N].
            seed: Seed of the draw.
        """
        order = torch.randperm(len(features), generator=generator(seed, "held-out features"))[:_MOST].sort().values
        return cls._rounded(features[order.to(features.device)], labels[order.to(labels.device)])

    @classmethod
    def _rounded(cls, features: Tensor, labels: Tensor, exact: bool = True) -> "HeldOut | None":
        rounded = features.half().float()
        if len(rounded) == 0 or not bool(rounded.isfinite().all()):
            return None
        return cls(rounded, labels.to(rounded.device), exact)

    def moved(self, drift: Drift) -> "HeldOut | None":
        """Move the features as those of the images of a stage have moved, as nobody has these images any more.

        None where half precision cannot hold them.
        """
        return self._rounded(drift(self.features), self.labels, exact=False)

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored."""
        expected = {} if self.exact else {"expected": torch.ones((), dtype=torch.bool)}
        return {"features": self.features.half(), "labels": self.labels, **expected}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], size: int, classes: int) -> "HeldOut":
        """Rebuild what `tensors` returned.

        Args:
            tensors: The tensors.
            size: Number of features.
            classes: Number of classes that are known.

        Raises:
            KeyError: If a tensor is missing.
            ValueError: If they are not features and classes of images.
        """
        features, labels = tensors["features"].float(), tensors["labels"]
        if features.ndim != 2 or features.shape[1] != size or len(features) == 0 or not bool(features.isfinite().all()):
            raise ValueError(f"features of images that were kept out must be finite and [n, {size}]")
        if labels.dtype != torch.int64 or labels.shape != features.shape[:1]:
            raise ValueError("each image that was kept out needs the number of its class")
        if int(labels.min()) < 0 or int(labels.max()) >= classes:
            raise ValueError(f"images that were kept out are of classes 0 to {classes - 1}")
        return cls(features, labels, exact="expected" not in tensors)

    def to(self, device: torch.device) -> "HeldOut":
        """Return the same on a device."""
        return HeldOut(self.features.to(device), self.labels.to(device), self.exact)


def after_a_stage(held_out: HeldOut | None, drift: Drift | None, frozen: bool) -> HeldOut | None:
    """Return what a run keeps of images that were kept out of training, and that nobody has any more.

    Args:
        held_out: What it had before the stage.
        drift: How features moved in the stage; None if that is not known.
        frozen: Whether the stage left the network as it was.
    """
    if held_out is None or frozen:
        return held_out
    return None if drift is None else held_out.moved(drift)
