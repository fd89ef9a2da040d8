"""Densities of all classes, with the advice of a head that was trained on images of some of them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.discovery.density import DensityHead

__all__ = ["AdvisedDensities"]


class AdvisedDensities(nn.Module):
    """Scores features by densities, but parts the classes that a linear head was trained on by both.

    Where images were many, a head trained on them tells their classes apart better than Gaussians do, and knows nothing
    of classes that came later. So with the scores s of the densities and h of the head, and the advised classes A,

        score_c = log Σ_A exp(s_a) + log softmax_A((s + h) / 2)_c    for c in A, and s_c for all others:

    how likely A is at all is left to the densities.

    Args:
        densities: Head over C classes.
        head: Head over the first B of them, B <= C.
        advised: The classes on which the head is asked, bool [C], one or more, all of them among the first B.

    Raises:
        ValueError: If the sizes do not go together.
    """

    advised: Tensor

    def __init__(self, densities: DensityHead, head: nn.Linear, advised: Tensor) -> None:
        super().__init__()
        classes = len(densities.means)
        if head.out_features > classes or head.in_features != densities.means.shape[1]:
            raise ValueError(f"a head of {head.out_features} classes does not go with densities of {classes}")
        if advised.shape != (classes,) or not bool(advised.any()) or bool(advised[head.out_features :].any()):
            raise ValueError(f"advised classes must be among the first {head.out_features} of {classes}")
        self.densities, self.head = densities, head
        self.register_buffer("advised", advised)

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores of all classes, [B, C], for features [B, D]."""
        scores: Tensor = self.densities(features)
        advice = F.pad(self.head(features), (0, scores.shape[1] - self.head.out_features))
        others = ~self.advised
        together = scores.masked_fill(others, -torch.inf).logsumexp(dim=1, keepdim=True)
        within = ((scores + advice) / 2).masked_fill(others, -torch.inf).log_softmax(dim=1)
        return torch.where(self.advised, together + within, scores)
