"""The forms of ResNet-32 on which labelled increments are published."""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.backbones.resnet import BasicBlock, PoolPadShortcut, conv, resnet

__all__ = ["lucir_resnet32", "pycil_resnet32", "rebuffi_resnet32", "without_last_relu"]

_WIDTHS = (16, 32, 64)
_LAST_RELU = "last_relu"


class SlicePadShortcut(nn.Module):
    """A shortcut without parameters: every second row and column, then zero channels appended.

    Args:
        extra_channels: Number of zero channels to append.
    """

    def __init__(self, extra_channels: int) -> None:
        super().__init__()
        self.extra_channels = extra_channels

    def forward(self, images: Tensor) -> Tensor:
        """Map [N, C, H, W] to [N, C + extra_channels, ceil(H / 2), ceil(W / 2)]."""
        return F.pad(images[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.extra_channels))


class OpenBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, added to a shortcut, without ReLU after the sum.

    Args:
        in_channels: Channels of the input map.
        out_channels: Channels of the output map.
        stride: 1, or 2 where the map is halved.
        generator: Source of the initial kernels.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, out_channels, 3, stride, generator)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.relu1 = nn.ReLU()
        self.conv2 = conv(out_channels, out_channels, 3, 1, generator)
        self.norm2 = nn.BatchNorm2d(out_channels)
        # Each block starts as its shortcut.
        nn.init.zeros_(self.norm2.weight)
        same = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if same else SlicePadShortcut(out_channels - in_channels)

    def forward(self, images: Tensor) -> Tensor:
        """Map [N, in_channels, H, W] to [N, out_channels, ceil(H / stride), ceil(W / stride)]."""
        hidden = self.relu1(self.norm1(self.conv1(images)))
        total: Tensor = self.norm2(self.conv2(hidden)) + self.shortcut(images)
        return total


def rebuffi_resnet32(
    in_channels: int, generator: torch.Generator | None = None, *, last_relu: bool = False
) -> nn.Sequential:
    """Build the ResNet-32 of PODNet, AFC and their iCaRL: groups of 5, 5, 4 and 1 blocks, features [N, 64].

    No block ends with a ReLU; shortcuts have no parameters. The last block is a group of its own, `layer4`, as these
    systems compare its output too.

    Args:
        in_channels: Channels of the images.
        generator: Source of the initial kernels; None draws from torch's default CPU generator.
        last_relu: Whether a ReLU stands between the last block and the pooling, as in front of the head of iCaRL.
    """
    parts, channels = _stem(in_channels, generator), _WIDTHS[0]
    for group, (width, blocks) in enumerate(zip((*_WIDTHS, _WIDTHS[-1]), (5, 5, 4, 1), strict=True)):
        layer = nn.Sequential()
        for _ in range(blocks):
            layer.append(OpenBlock(channels, width, 1 if width == channels else 2, generator))
            channels = width
        parts[f"layer{group + 1}"] = layer
    if last_relu:
        parts[_LAST_RELU] = nn.ReLU()
    return _pooled(parts)


def without_last_relu(network: nn.Module) -> nn.Module:
    """Return a network that shares all layers but the ReLU in front of the pooling.

    Args:
        network: One made with `last_relu`, or anything else, which is returned as it is.
    """
    if not isinstance(network, nn.Sequential) or _LAST_RELU not in dict(network.named_children()):
        return network
    return nn.Sequential(OrderedDict((name, part) for name, part in network.named_children() if name != _LAST_RELU))


def lucir_resnet32(in_channels: int, generator: torch.Generator | None = None) -> nn.Sequential:
    """Build the ResNet-32 of LUCIR and AANets: three groups of 5 blocks, the last without ReLU, features [N, 64].

    Shortcuts that change shape are 1x1 convolutions with batch norm.

    Args:
        in_channels: Channels of the images.
        generator: Source of the initial kernels; None draws from torch's default CPU generator.
    """
    network = resnet(in_channels, _WIDTHS, 5, projection=True, generator=generator)
    last = network.get_submodule("layer3.4")
    assert isinstance(last, BasicBlock)
    last.relu2 = nn.Identity()
    return network


def pycil_resnet32(in_channels: int, generator: torch.Generator | None = None) -> nn.Sequential:
    """Build the ResNet-32 of FOSTER: three groups of 5 blocks, each with a ReLU at its end, features [N, 64].

    Shortcuts have no parameters; those that halve a map take every second row and column.

    Args:
        in_channels: Channels of the images.
        generator: Source of the initial kernels; None draws from torch's default CPU generator.
    """
    network = resnet(in_channels, _WIDTHS, 5, generator=generator)
    for block in network.modules():
        if isinstance(block, BasicBlock) and isinstance(block.shortcut, PoolPadShortcut):
            block.shortcut = SlicePadShortcut(block.shortcut.extra_channels)
    return network


def _stem(in_channels: int, generator: torch.Generator | None) -> OrderedDict[str, nn.Module]:
    return OrderedDict(
        conv=conv(in_channels, _WIDTHS[0], 3, 1, generator), norm=nn.BatchNorm2d(_WIDTHS[0]), relu=nn.ReLU()
    )


def _pooled(parts: OrderedDict[str, nn.Module]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(**parts, pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten()))
