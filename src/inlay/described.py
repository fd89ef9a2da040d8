"""Labelled images for a base stage, with their features where these are known before it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inlay import backbones, branches
from inlay.data.images import Images
from inlay.engine.feed import feed_of
from inlay.engine.inference import features_of
from inlay.engine.progress import counting
from inlay.knowledge import InputForm, Knowledge
from inlay.pipeline import Workshop
from inlay.settings import Settings

__all__ = ["Described", "described"]


@dataclass(frozen=True, eq=False)
class Described:
    """Images, and what a pretrained network that stays as it is says of them.

    Attributes:
        images: The images.
        features: Their features, [N, D]; None if the network is yet to be trained.
        seconds: Time that the features took.
    """

    images: Images
    features: Tensor | None = None
    seconds: float = 0.0

    def select(self, chosen: Tensor) -> "Described":
        """Keep some images, given by a mask, bool [N], or by their places."""
        features = None if self.features is None else self.features[chosen.to(self.features.device)]
        return Described(self.images.select(chosen), features)

    def of_classes(self, names: Sequence[str]) -> "Described":
        """Give the classes other numbers; the images have to be of these classes."""
        kept = self.images.of_classes(names)
        if len(kept) != len(self.images):
            raise ValueError("images of other classes have to be left out first")
        return Described(kept, self.features)

    def by(self, knowledge: Knowledge) -> Tensor:
        """Return the features by the network of a base stage, [N, D], on its device."""
        return knowledge.features(self.images) if self.features is None else self.features

    @property
    def labels(self) -> Tensor:
        """Class of each image, [N]."""
        assert self.images.labels is not None
        return self.images.labels


def described(images: Images, backbone: str | nn.Module, settings: Settings, workshop: Workshop) -> Described:
    """Describe images by a pretrained network, if the base stage leaves it as it is.

    The base stage, its calibration and its self-test need the same features: this way an image passes through the
    network once.

    Args:
        images: Labelled images.
        backbone: Name of a backbone, or a module.
        settings: All settings of the run.
        workshop: Where it is computed.

    Raises:
        InlayError: If the backbone does not fit.
    """
    if settings.base.training.epochs > 0 or not isinstance(backbone, str):
        return Described(images)
    begun = backbones.begin(backbone, images.channels, images.size, torch.Generator())
    if begun.expected is None:
        return Described(images)
    began = time.monotonic()
    form = InputForm(images.size, images.channels, begun.expected.mean, begun.expected.std)
    network = branches.fold(begun.network, form.example()).requires_grad_(False)
    network.to(workshop.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    with counting(workshop.progress, f"looking at {len(images):,} images") as report:
        features = features_of(network, feed_of(images.pixels, workshop.device), form.prepare, report)
    return Described(images, features, time.monotonic() - began)
