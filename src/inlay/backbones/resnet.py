"""Residual networks for small images: 3x3 stem, no max-pooling, global average pooling."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.backbones.initialisation import kaiming_normal_

__all__ = ["BasicBlock", "PoolPadShortcut", "conv", "resnet"]


class PoolPadShortcut(nn.Module):
    """A shortcut without parameters: average pooling, then zero channels appended.

    On odd maps the last pooling window is cut off at the border, which gives the same size as a strided 3x3
    convolution with padding 1.

    Args:
        extra_channels: Number of zero channels to append.
        stride: Size and stride of the pooling window.
    """

    def __init__(self, extra_channels: int, stride: int) -> None:
        super().__init__()
        self.extra_channels = extra_channels
        self.pool = nn.AvgPool2d(stride, ceil_mode=True)

    def forward(self, images: Tensor) -> Tensor:
        """Map [N, C, H, W] to [N, C + extra_channels, ceil(H / stride), ceil(W / stride)]."""
        return F.pad(self.pool(images), (0, 0, 0, 0, 0, self.extra_channels))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, added to a shortcut.

    Args:
        in_channels: Channels of the input map.
        out_channels: Channels of the output map.
        stride: Stride of the first convolution.
        projection: Whether a shortcut that changes shape is a 1x1 convolution with batch norm; otherwise it
            has no parameters.
        generator: Source of the initial kernels.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        projection: bool,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, out_channels, 3, stride, generator)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.relu1 = nn.ReLU()
        self.conv2 = conv(out_channels, out_channels, 3, 1, generator)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = _shortcut(in_channels, out_channels, stride, projection, generator)
        self.relu2: nn.Module = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        """Map [N, in_channels, H, W] to [N, out_channels, ceil(H / stride), ceil(W / stride)]."""
        hidden = self.relu1(self.norm1(self.conv1(images)))
        residual: Tensor = self.norm2(self.conv2(hidden))
        activated: Tensor = self.relu2(residual + self.shortcut(images))
        return activated


def resnet(
    in_channels: int,
    widths: Sequence[int],
    blocks: int,
    *,
    projection: bool = False,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Build a residual network that maps images [N, in_channels, H, W] to features [N, widths[-1]].

    The first group keeps the size of the map; each later group halves it.

    Args:
        in_channels: Channels of the images.
        widths: Channels of each group.
        blocks: Number of blocks in each group.
        projection: Whether shape-changing shortcuts are 1x1 convolutions with batch norm.
        generator: Source of the initial kernels; None draws from torch's default CPU generator.
    """
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["conv"] = conv(in_channels, widths[0], 3, 1, generator)
    parts["norm"] = nn.BatchNorm2d(widths[0])
    parts["relu"] = nn.ReLU()
    channels = widths[0]
    for group, width in enumerate(widths):
        strides = [1 if group == 0 else 2] + [1] * (blocks - 1)
        layer = nn.Sequential()
        for stride in strides:
            layer.append(BasicBlock(channels, width, stride, projection, generator))
            channels = width
        parts[f"layer{group + 1}"] = layer
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    return nn.Sequential(parts)


def conv(in_channels: int, out_channels: int, kernel: int, stride: int, generator: torch.Generator | None) -> nn.Conv2d:
    """Return a convolution without bias, padded so that stride 1 keeps the size, with Kaiming normal kernels."""
    # On the meta device torch's own initialisation draws nothing from the global generator.
    meta = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False, device="meta")
    layer = meta.to_empty(device="cpu")
    kaiming_normal_(layer.weight, generator)
    return layer


def _shortcut(
    in_channels: int, out_channels: int, stride: int, projection: bool, generator: torch.Generator | None
) -> nn.Module:
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    if not projection:
        return PoolPadShortcut(out_channels - in_channels, stride)
    layer = conv(in_channels, out_channels, 1, stride, generator)
    return nn.Sequential(OrderedDict(conv=layer, norm=nn.BatchNorm2d(out_channels)))
