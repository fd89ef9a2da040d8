"""The network that suits images, where nobody names one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from inlay.backbones.pretrained import NAME, is_installed
from inlay.data.pixels import Size

__all__ = ["Choice", "choose_network", "choose_share", "suits_pretrained"]

_SMALLEST_PHOTOGRAPH = 32
# The pretrained network was trained on 260. On small photographs 192 was within a point of 224, 160 two points below.
_LEAST_SIDE = 192
# Its features are good to begin with: training branches on a few photographs made them no better, and took most of
# the time. There are more features than images of a class, so classes share their correlations, and what is made of
# these is held far from them. The linear head decides in the base stage alone, and is fitted to few samples later.
_AS_IT_IS = {
    "base.training.epochs": 0,
    "training.epochs": 0,
    "branch.gate": "frozen",
    "replay.statistics": "pooled",
    "assignment.metric_floor": 1.0,
    "classifier.drift": False,
    "classifier.refit_per_class": 100,
    "classifier.refit_decay": 0.01,
    "classifier.density_floor": 1.0,
    "classifier.density_counts": True,
    "classifier.advised": True,
}
_LEAST_SHARE, _MOST_SHARE = 0.1, 0.25
# So many leave room for three odd ones among the twentieth that may be taken for new, and for a small self-test.
_ENOUGH_HELD_OUT = 80
_SMALL, _LARGE = "resnet8", "resnet18"
# Piles for a CPU are small, and at the rate of the benchmarks so few steps pull apart what k-means had right.
_GENTLY = {"training.learning_rate": 0.01}


@dataclass(frozen=True)
class Choice:
    """A network for a run.

    Attributes:
        backbone: Its name.
        side: Side of the squares that images are read at; None leaves it to the network or the images.
        reason: Why, in one sentence.
        changes: Settings that it needs, by dotted path.
    """

    backbone: str
    side: int | None
    reason: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Whether the base stage trains the network."""
        return self.changes != _AS_IT_IS


def suits_pretrained(size: Size, channels: int) -> bool:
    """Say whether images are for the pretrained network: large enough, and in three channels."""
    return channels == 3 and min(size) >= _SMALLEST_PHOTOGRAPH


def choose_network(
    size: Size, channels: int, device: torch.device, published: bool = False, side: int | None = None
) -> Choice:
    """Choose a network for labelled images.

    Photographs get the pretrained network if it is installed, and it is left as it is: training all of it on a few
    images makes its features worse for classes that are still to come. Small ones are enlarged. Other images get
    a network that is trained from the beginning, a small one where there is no GPU.

    Args:
        size: Height and width that the images are read at.
        channels: Their channels.
        device: Where it is computed.
        published: Choose the network of the publications.
        side: Side of the images that somebody asks for; None leaves it open.
    """
    if published:
        return Choice(_LARGE, None, f"Network: {_LARGE} from scratch, as published; --backbone chooses another.")
    shown = f"{size[1]}×{size[0]}"
    photographs = suits_pretrained(size, channels)
    if photographs and is_installed():
        side = side or max(min(size), _LEAST_SIDE)
        reason = f"Network: {NAME}, as pretrained, with images of {side}×{side}; --backbone chooses another."
        return Choice(NAME, side, reason, _AS_IT_IS)
    has_gpu = device.type == "cuda"
    backbone, where, changes = (_LARGE, "a GPU", {}) if has_gpu else (_SMALL, "a CPU", _GENTLY)
    reason = f"Network: {backbone} from scratch, for {where}, with images of {shown}"
    if photographs:
        return Choice(backbone, None, f'{reason}; pip install "inlay[pretrained]" for a better one.', changes)
    return Choice(backbone, None, f"{reason}; --backbone chooses another.", changes)


def choose_share(images: int) -> float:
    """Choose the share of labelled images to keep out of training: a tenth, and up to a quarter where there are few.

    Args:
        images: Number of labelled images.
    """
    return min(max(_LEAST_SHARE, _ENOUGH_HELD_OUT / max(images, 1)), _MOST_SHARE)
