"""The square root of features, which takes the skew off averages of rectified maps."""

import torch
from torch import Tensor, nn

__all__ = ["Root"]

# The slope of the root is infinite at 0, where many features lie.
_OFFSET = 1e-3


class Root(nn.Module):
    """Takes the square root of features that are 0 or more.

    A map after ReLU, averaged over its places, is near 0 for most images and large for a few. Classes in such features
    are lopsided; in their roots they are closer to the Gaussians as which they are described.
    """

    def forward(self, features: Tensor) -> Tensor:
        """Map features [N, D] to sqrt(x + 0.001), [N, D]; what rounding has put below 0 counts as 0."""
        return torch.sqrt(features.clamp_min(0) + _OFFSET)
