"""Self-supervised contrastive loss between two views of the same images."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ContrastiveForm", "contrastive"]

ContrastiveForm = Literal["standard", "literal"]


def contrastive(first: Tensor, second: Tensor, temperature: float = 0.5, form: ContrastiveForm = "standard") -> Tensor:
    """Pull the two views of each image together and push other images away (Eq. 1).

    Args:
        first: Projections of the first views, [B, P]; L2-normalised here.
        second: Projections of the second views, [B, P], in the same order.
        temperature: Divisor of the cosine similarities, above 0.
        form: "standard" is NT-Xent over all 2B views: every view is an anchor and only the anchor itself is
            left out of its denominator. "literal" is the equation as printed: the anchor is a first view and
            the denominator holds only the second views of the other images, so the value can be negative.

    Returns:
        The scalar mean over anchors.

    Raises:
        ValueError: If the shapes differ, there are fewer than two images, or the temperature or form is bad.
    """
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"both views must be [B, P]; got {tuple(first.shape)} and {tuple(second.shape)}")
    if len(first) < 2:
        raise ValueError("a contrastive loss needs at least two images")
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0; got {temperature}")
    first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
    if form == "standard":
        return _nt_xent(first, second, temperature)
    if form == "literal":
        return _as_printed(first, second, temperature)
    raise ValueError(f"form must be 'standard' or 'literal'; got {form!r}")


def _nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    views = torch.cat([first, second])
    similarity = (views @ views.T) / temperature
    itself = torch.eye(len(views), dtype=torch.bool, device=views.device)
    partner = torch.arange(len(views), device=views.device).roll(len(first))
    return F.cross_entropy(similarity.masked_fill(itself, -torch.inf), partner)


def _as_printed(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    similarity = (first @ second.T) / temperature
    partner = torch.eye(len(first), dtype=torch.bool, device=first.device)
    others = similarity.masked_fill(partner, -torch.inf).logsumexp(dim=1)
    return (others - similarity.diagonal()).mean()
