"""Heads that take over what another one knows, over more features and more classes."""

import torch
from torch import nn

from inlay.heads import kaiming_linear

__all__ = ["widened"]


def widened(head: nn.Linear, features: int, classes: int, generator: torch.Generator) -> nn.Linear:
    """Return a head over further features and classes; without further features it scores old classes as before.

    Old weights and biases are copied. All other weights are drawn by Kaiming's rule, and the biases of new classes are
    0.

    Args:
        head: Head with biases over D features and O classes; it is not changed.
        features: Number of features that come after the old ones.
        classes: Number of classes that come after the old ones.
        generator: Source of the new weights.

    Returns:
        A head that can be trained, with the type and on the device of the old one.
    """
    old, size = head.weight.shape
    wider = kaiming_linear(size + features, old + classes, generator).to(head.weight)
    with torch.no_grad():
        wider.weight[:old, :size] = head.weight
        wider.bias[:old] = head.bias
    return wider
