"""Features of images that were kept out of training: what a run can measure itself by when the images are gone."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.engine.randomness import generator

__all__ = ["HeldOut"]

_MOST = 1000


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Features of images of base classes by a network that stays as it is.

    Attributes:
        features: The features, [n, D], float32, rounded to half precision.
        labels: Their classes, int64 [n].
    """

    features: Tensor
    labels: Tensor

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
        rounded = features[order.to(features.device)].half().float()
        if len(rounded) == 0 or not bool(rounded.isfinite().all()):
            return None
        return cls(rounded, labels[order.to(labels.device)].to(rounded.device))

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored."""
        return {"features": self.features.half(), "labels": self.labels}

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
        return cls(features, labels)

    def to(self, device: torch.device) -> "HeldOut":
        """Return the same on a device."""
        return HeldOut(self.features.to(device), self.labels.to(device))
