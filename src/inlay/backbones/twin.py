"""A network whose last group exists twice, and the heads that read its features: residual tuning."""

import copy
import re

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from inlay.backbones.catalogue import names
from inlay.backbones.initialisation import kaiming_normal_
from inlay.discovery.projection import StudentHead
from inlay.errors import InlayError

__all__ = ["ResidualStudentHead", "TwinNetwork", "old_part", "padded_head", "twin_part"]


class TwinNetwork(nn.Module):
    """A residual network with a second last group of random weights beside the trained one.

    Liu and Tuytelaars (Residual Tuning, TNNLS 2022) keep the trained group for the old classes and learn the new
    ones on the sum of both. The twin can be trained; the rest is a copy that can be trained where the original can.

    Args:
        network: Residual network whose children layer1, layer2, … are its groups, with batch norms and without a
            head; it is not changed.
        generator: Source of the kernels of the twin.

    Raises:
        InlayError: If the network has no such groups, or its batch norms were folded.
    """

    def __init__(self, network: nn.Module, generator: torch.Generator) -> None:
        super().__init__()
        last = _last_group(network)
        assert isinstance(network, nn.Sequential)
        _check_last_group(network[last:])
        self.shared = copy.deepcopy(network[:last])
        self.old = copy.deepcopy(network[last:])
        self.twin = _with_new_weights(network[last:], generator)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [N, C, H, W] to the features of the old group beside those of the twin, [N, 2 D]."""
        shared = self.shared(images)
        return torch.cat([self.old(shared), self.twin(shared)], dim=1)


class ResidualStudentHead(nn.Module):
    """Assigns images softly to centres by the sum of the old and the twin features.

    Args:
        student: Head over features [N, D]; it is held, not copied.
    """

    def __init__(self, student: StudentHead) -> None:
        super().__init__()
        self.student = student

    def forward(self, features: Tensor) -> Tensor:
        """Return assignments whose rows sum to 1, [N, K], for the features of a `TwinNetwork`, [N, 2 D]."""
        assignments: Tensor = self.student(old_part(features) + twin_part(features))
        return assignments


def old_part(features: Tensor) -> Tensor:
    """Return the features of the old group, [N, D], from those of a `TwinNetwork`, [N, 2 D].

    Raises:
        ValueError: If the features are not of that shape.
    """
    return features[:, : _half(features)]


def twin_part(features: Tensor) -> Tensor:
    """Return the features of the twin, [N, D], from those of a `TwinNetwork`, [N, 2 D].

    Raises:
        ValueError: If the features are not of that shape.
    """
    return features[:, _half(features) :]


def padded_head(head: nn.Linear) -> nn.Linear:
    """Return a copy of a head on [N, D] that takes the features of a `TwinNetwork`, [N, 2 D], and ignores the twin."""
    padded = copy.deepcopy(head)
    weight = head.weight.detach()
    padded.weight = nn.Parameter(torch.cat([weight, torch.zeros_like(weight)], dim=1), head.weight.requires_grad)
    padded.in_features = 2 * head.in_features
    return padded


def _half(features: Tensor) -> int:
    if features.ndim != 2 or features.shape[1] % 2:
        raise ValueError(f"features of a twin network must be [N, 2 D]; got {tuple(features.shape)}")
    return features.shape[1] // 2


def _last_group(network: nn.Module) -> int:
    """Return the position of the last group among the children of a network."""
    children = [name for name, _ in network.named_children()]
    groups = [place for place, name in enumerate(children) if re.fullmatch(r"layer\d+", name)]
    # A subclass may not run its children in order.
    if type(network) is not nn.Sequential or not groups:
        known = ", ".join(name for name in names() if name.startswith("resnet"))
        raise InlayError(
            f"Residual tuning doubles the last group of a residual network, which this {type(network).__name__} does "
            f"not have; take {known}, or a torch.nn.Sequential with children layer1, layer2, …"
        )
    return groups[-1]


def _check_last_group(group: nn.Module) -> None:
    norms = [module for module in group.modules() if isinstance(module, _BatchNorm)]
    owners = [module for module in group.modules() if next(module.parameters(recurse=False), None) is not None]
    # By exact type, as a folded convolution is a convolution too.
    foreign = [module for module in owners if type(module) is not nn.Conv2d and not isinstance(module, _BatchNorm)]
    if foreign or not norms:
        found = f"a {type(foreign[0]).__name__}" if foreign else "no batch norm"
        raise InlayError(
            f"Residual tuning starts from a network of plain convolutions and their batch norms, but there is {found} "
            f"in its last group; pass the network as it was before its batch norms were folded or branches attached."
        )


def _with_new_weights(group: nn.Module, generator: torch.Generator) -> nn.Module:
    twin = copy.deepcopy(group).requires_grad_(True)
    for module in twin.modules():
        if isinstance(module, nn.Conv2d):
            kaiming_normal_(module.weight, generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, _BatchNorm):
            module.reset_parameters()
    return twin
