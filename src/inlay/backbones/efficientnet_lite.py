"""EfficientNet-Lite: inverted residual blocks without squeeze-and-excitation, ReLU6 throughout."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.backbones.initialisation import kaiming_normal_
from inlay.errors import InlayError

__all__ = ["VERSIONS", "InvertedResidual", "SamePadding", "efficientnet_lite"]


class _Group(NamedTuple):
    expansion: int
    kernel: int
    stride: int
    width: int
    blocks: int


_STEM_WIDTH = 32
_GROUPS = (
    _Group(1, 3, 1, 16, 1),
    _Group(6, 3, 2, 24, 2),
    _Group(6, 5, 2, 40, 2),
    _Group(6, 3, 2, 80, 3),
    _Group(6, 5, 1, 112, 3),
    _Group(6, 5, 2, 192, 4),
    _Group(6, 3, 1, 320, 1),
)
_FEATURES = 1280
_EPSILON = 1e-3
_WIDTH_STEP = 8


class _Scale(NamedTuple):
    width: float
    depth: float


_SCALES = {0: _Scale(1.0, 1.0), 2: _Scale(1.1, 1.2)}

VERSIONS = tuple(_SCALES)
"""Versions that can be built; a higher one is wider and deeper."""


class SamePadding(nn.Module):
    """Zeros around a map so that a convolution without padding gives ceil(size / stride) rows and columns.

    The zeros are as few as possible; of an odd number, the last row or column goes to the bottom or the right.

    Args:
        kernel: Side of the convolution's kernel.
        stride: Stride of the convolution.
    """

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.stride = stride

    def forward(self, images: Tensor) -> Tensor:
        """Map [N, C, H, W] to the padded map, [N, C, H + rows, W + columns]."""
        top, bottom = self._zeros(images.shape[2])
        left, right = self._zeros(images.shape[3])
        return F.pad(images, (left, right, top, bottom))

    def _zeros(self, size: int) -> tuple[int, int]:
        steps = (size - 1) // self.stride
        total = max(steps * self.stride + self.kernel - size, 0)
        return total // 2, total - total // 2


class InvertedResidual(nn.Sequential):
    """Expand by a 1x1 convolution, filter each channel, project by a 1x1 convolution; then the input is added.

    Nothing is added where the block changes the shape of the map, and an expansion of 1 has no first convolution.

    Args:
        in_channels: Channels of the input map.
        out_channels: Channels of the output map.
        kernel: Side of the depthwise kernel.
        stride: Stride of the depthwise convolution.
        expansion: Factor by which the channels are expanded.
        generator: Source of the initial kernels.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int,
        expansion: int,
        generator: torch.Generator | None,
    ) -> None:
        hidden = in_channels * expansion
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if expansion != 1:
            parts["_expand_conv"] = _conv(in_channels, hidden, 1, generator=generator)
            parts["_bn0"] = nn.BatchNorm2d(hidden, eps=_EPSILON)
            parts["relu0"] = nn.ReLU6()
        if stride != 1:
            parts["pad"] = SamePadding(kernel, stride)
        parts["_depthwise_conv"] = _conv(hidden, hidden, kernel, stride, groups=hidden, generator=generator)
        parts["_bn1"] = nn.BatchNorm2d(hidden, eps=_EPSILON)
        parts["relu1"] = nn.ReLU6()
        parts["_project_conv"] = _conv(hidden, out_channels, 1, generator=generator)
        parts["_bn2"] = nn.BatchNorm2d(out_channels, eps=_EPSILON)
        super().__init__(parts)
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, images: Tensor) -> Tensor:
        """Map [N, in_channels, H, W] to [N, out_channels, ceil(H / stride), ceil(W / stride)]."""
        hidden = images
        for part in self:
            hidden = part(hidden)
        return hidden + images if self.residual else hidden


def efficientnet_lite(
    version: int, in_channels: int = 3, classes: int | None = None, generator: torch.Generator | None = None
) -> nn.Sequential:
    """Build an EfficientNet-Lite for images [N, in_channels, H, W] of any size, best 32x32 or more.

    Parts with weights are named as in the published ImageNet weights, see
    `inlay.backbones.pretrained_efficientnet_lite`. Like them it has a batch norm epsilon of 1e-3 and pads strided
    convolutions as TensorFlow does. Dropout and stochastic depth, which serve long training from scratch, are left out.

    Args:
        version: One of `VERSIONS`.
        in_channels: Channels of the images.
        classes: Number of logits; None leaves out the last linear layer.
        generator: The only source of the initial weights; None draws from torch's default CPU generator.

    Returns:
        A network that gives features [N, 1280], or logits [N, classes].

    Raises:
        InlayError: If the version is unknown, or in_channels or classes is below 1.
    """
    if version not in _SCALES:
        raise InlayError(f"There is no EfficientNet-Lite{version} here; write one of {', '.join(map(str, VERSIONS))}.")
    if in_channels < 1:
        raise InlayError(f"in_channels must be at least 1 (3 for colour, 1 for grey), not {in_channels}.")
    if classes is not None and classes < 1:
        raise InlayError(f"classes must be at least 1, or None for features, not {classes}.")
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["pad"] = SamePadding(3, 2)
    parts["_conv_stem"] = _conv(in_channels, _STEM_WIDTH, 3, 2, generator=generator)
    parts["_bn0"] = nn.BatchNorm2d(_STEM_WIDTH, eps=_EPSILON)
    parts["relu0"] = nn.ReLU6()
    groups = _scaled(_SCALES[version])
    parts["_blocks"] = _blocks(groups, generator)
    parts["_conv_head"] = _conv(groups[-1].width, _FEATURES, 1, generator=generator)
    parts["_bn1"] = nn.BatchNorm2d(_FEATURES, eps=_EPSILON)
    parts["relu1"] = nn.ReLU6()
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    if classes is not None:
        parts["_fc"] = _linear(_FEATURES, classes, generator)
    return nn.Sequential(parts)


def _scaled(scale: _Scale) -> list[_Group]:
    """Widen all groups and deepen those in between; stem, features and the depth of the first and the last are kept."""
    inner = range(1, len(_GROUPS) - 1)
    return [
        group._replace(
            width=_rounded(scale.width * group.width),
            blocks=math.ceil(scale.depth * group.blocks) if place in inner else group.blocks,
        )
        for place, group in enumerate(_GROUPS)
    ]


def _rounded(width: float) -> int:
    """Round to a multiple of 8 that is not more than a tenth too small."""
    nearest = int(width + _WIDTH_STEP / 2) // _WIDTH_STEP * _WIDTH_STEP
    return nearest if nearest >= 0.9 * width else nearest + _WIDTH_STEP


def _blocks(groups: Sequence[_Group], generator: torch.Generator | None) -> nn.Sequential:
    blocks, channels = nn.Sequential(), _STEM_WIDTH
    for group in groups:
        for position in range(group.blocks):
            stride = group.stride if position == 0 else 1
            blocks.append(
                InvertedResidual(channels, group.width, group.kernel, stride, group.expansion, generator=generator)
            )
            channels = group.width
    return blocks


def _conv(
    in_channels: int,
    out_channels: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    *,
    generator: torch.Generator | None,
) -> nn.Conv2d:
    # For stride 1 symmetric padding is what TensorFlow does; for others it depends on the size of the map.
    padding = kernel // 2 if stride == 1 else 0
    # On the meta device torch's own initialisation draws nothing from the global generator.
    meta = nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False, device="meta")
    conv = meta.to_empty(device="cpu")
    kaiming_normal_(conv.weight, generator)
    with torch.no_grad():
        # An input channel reaches only the outputs of its own group, so the true fan out is that much smaller.
        conv.weight.mul_(math.sqrt(groups))
    return conv


def _linear(inputs: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    linear = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    device = torch.device("cpu") if generator is None else generator.device
    weight = torch.empty(outputs, inputs, device=device).normal_(0.0, 0.01, generator=generator)
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.zero_()
    return linear
