"""The backbones that can be built by name."""

from collections.abc import Callable

import torch
from torch import nn

from inlay.backbones.efficientnet_lite import VERSIONS, efficientnet_lite
from inlay.backbones.incremental_resnets import lucir_resnet32, pycil_resnet32, rebuffi_resnet32
from inlay.backbones.pretrained import PRETRAINED, pretrained_efficientnet_lite
from inlay.backbones.resnet import resnet
from inlay.errors import InlayError

__all__ = ["build", "check_name", "names"]

_Builder = Callable[[int, int, torch.Generator | None], nn.Module]


def _cifar(blocks: int) -> _Builder:
    def builder(in_channels: int, widening: int, generator: torch.Generator | None) -> nn.Module:
        widths = [width * widening for width in (16, 32, 64)]
        return resnet(in_channels, widths, blocks, generator=generator)

    return builder


def _imagenet(projection: bool) -> _Builder:
    def builder(in_channels: int, widening: int, generator: torch.Generator | None) -> nn.Module:
        widths = [width * widening for width in (64, 128, 256, 512)]
        return resnet(in_channels, widths, 2, projection=projection, generator=generator)

    return builder


def _efficientnet_lite(version: int) -> _Builder:
    def builder(in_channels: int, widening: int, generator: torch.Generator | None) -> nn.Module:
        return efficientnet_lite(version, in_channels, generator=generator)

    return builder


def _pretrained(name: str) -> _Builder:
    def builder(in_channels: int, widening: int, generator: torch.Generator | None) -> nn.Module:
        if in_channels != 3:
            raise InlayError(
                f"{name} takes colour images of 3 channels, not {in_channels}: write "
                f"{name.removesuffix('-imagenet')}, which starts from random weights, or turn the images into colour."
            )
        return pretrained_efficientnet_lite(name)

    return builder


_CATALOGUE: dict[str, _Builder] = {
    "resnet8": _cifar(1),
    "resnet20": _cifar(3),
    "resnet32": _cifar(5),
    "resnet18": _imagenet(projection=False),
    "resnet18-1x1": _imagenet(projection=True),
    "resnet32-rebuffi": lambda in_channels, widening, generator: rebuffi_resnet32(in_channels, generator),
    "resnet32-rebuffi-relu": lambda in_channels, widening, generator: rebuffi_resnet32(
        in_channels, generator, last_relu=True
    ),
    "resnet32-lucir": lambda in_channels, widening, generator: lucir_resnet32(in_channels, generator),
    "resnet32-pycil": lambda in_channels, widening, generator: pycil_resnet32(in_channels, generator),
    **{f"efficientnet-lite{version}": _efficientnet_lite(version) for version in VERSIONS},
    **{name: _pretrained(name) for name in PRETRAINED},
}
_WIDENABLE = frozenset({"resnet8", "resnet20", "resnet32"})


def names() -> list[str]:
    """List the names that `build` knows, without widening suffixes."""
    return list(_CATALOGUE)


def build(name: str, in_channels: int = 3, generator: torch.Generator | None = None) -> nn.Module:
    """Build a backbone that maps images [N, in_channels, H, W] to features [N, D].

    Args:
        name: One of `names()`; resnet8, resnet20 and resnet32 take a widening suffix, as in "resnet8x2".
        in_channels: Channels of the images.
        generator: The only source of the initial weights, save those of pretrained backbones, which are not drawn; None
            draws from torch's default CPU generator.

    Raises:
        InlayError: If the name is unknown, in_channels is not positive or not what the pretrained backbone takes, or
            the package with its weights is not installed.
    """
    if in_channels < 1:
        raise InlayError(f"in_channels must be at least 1 (3 for colour, 1 for grey), not {in_channels}.")
    check_name(name)
    base, widening = _split_widening(name)
    return _CATALOGUE[base](in_channels, widening, generator)


def check_name(name: str) -> None:
    """Refuse a name that `build` does not know.

    Raises:
        InlayError: If the name is unknown.
    """
    if _split_widening(name)[0] not in _CATALOGUE:
        widenable = ", ".join(f"{known}x2" for known in names() if known in _WIDENABLE)
        raise InlayError(
            f"Unknown backbone {name!r}: write one of {', '.join(names())}, a wider one such as {widenable}, or one of "
            f"another library, timm:NAME or transformers:FOLDER."
        )


def _split_widening(name: str) -> tuple[str, int]:
    base, _, suffix = name.rpartition("x")
    if base in _WIDENABLE and suffix.isascii() and suffix.isdigit() and int(suffix) > 0:
        return base, int(suffix)
    return name, 1
