"""Soft assignment of points to learnable centres, taught by its own sharpened form: deep transfer clustering."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["DivergenceMean", "sharpened_targets", "student_assignments", "target_divergence"]

DivergenceMean = Literal["elements", "samples"]


def student_assignments(points: Tensor, centres: Tensor) -> Tensor:
    """Assign points softly to centres by a Student-t kernel of one degree of freedom.

    q_ik is proportional to 1 / (1 + |z_i - μ_k|²), as Han, Vedaldi and Zisserman have it (Learning to Discover
    Novel Visual Categories via Deep Transfer Clustering, ICCV 2019). Memory grows with B·C·K.

    Args:
        points: Embedded images z, [B, K].
        centres: Centres μ in the same space, [C, K].

    Returns:
        Assignments, [B, C], in at least float32; rows sum to 1. They are finite, as are their gradients,
        however far the points lie.

    Raises:
        ValueError: If the points and centres are not of one size.
    """
    if points.ndim != 2 or centres.ndim != 2 or points.shape[1] != centres.shape[1] or centres.numel() == 0:
        raise ValueError(f"points must be [B, K] and centres [C, K]; got {tuple(points.shape)}, {tuple(centres.shape)}")
    precision = _precision(points, centres)
    # Expanding the square would lose the small distances, which matter most, far from the origin.
    offsets = points.to(precision)[:, None] - centres.to(precision)
    # Beyond this the sum of squares would overflow and leave 0 / 0.
    largest = math.sqrt(torch.finfo(precision).max / offsets.shape[2]) / 2
    distances = offsets.clamp(-largest, largest).square().sum(dim=2)
    return (-distances.log1p()).softmax(dim=1)


@torch.no_grad()
def sharpened_targets(assignments: Tensor) -> Tensor:
    """Make targets of assignments that favour the confident ones and counter large clusters.

    p_ik is proportional to q_ik² / Σ_i q_ik, normalised over k. The sum runs over all rows given: the whole
    training set, as published, and not a batch.

    Args:
        assignments: Soft assignments q, rows that sum to 1, [N, C]; no gradient flows to them.

    Returns:
        Targets p, [N, C], in at least float32; rows sum to 1. A cluster that no image uses gets 0.

    Raises:
        ValueError: If the assignments are not a matrix.
    """
    if assignments.ndim != 2:
        raise ValueError(f"assignments must be [N, C]; got {tuple(assignments.shape)}")
    q = assignments.to(_precision(assignments))
    tiny = torch.finfo(q.dtype).tiny
    # The quotient first: the square of a small assignment would vanish.
    weights = q * (q / q.sum(dim=0).clamp_min(tiny))
    return weights / weights.sum(dim=1, keepdim=True).clamp_min(tiny)


def target_divergence(targets: Tensor, assignments: Tensor, mean: DivergenceMean = "elements") -> Tensor:
    """Measure the divergence KL(p || q) of assignments q from their targets p.

    Args:
        targets: Targets p, rows that sum to 1, [B, C]; no gradient flows to them.
        assignments: Assignments q of the same images, rows that sum to 1, [B, C].
        mean: "elements" divides by all B·C entries, as in the published code; "samples" divides by B, as in the
            usual definition, which is C times as large.

    Returns:
        The scalar mean in nats, in at least float32; finite, as are its gradients, also where q is 0.

    Raises:
        ValueError: If the shapes differ, there are no images or the mean is unknown.
    """
    if targets.shape != assignments.shape or targets.ndim != 2 or targets.numel() == 0:
        raise ValueError(
            f"targets and assignments must both be [B, C]; got {tuple(targets.shape)}, {tuple(assignments.shape)}"
        )
    if mean not in ("elements", "samples"):
        raise ValueError(f"mean must be 'elements' or 'samples'; got {mean!r}")
    precision = _precision(targets, assignments)
    log_q = assignments.to(precision).clamp_min(torch.finfo(precision).tiny).log()
    total = F.kl_div(log_q, targets.detach().to(precision), reduction="sum")
    return total / (targets.numel() if mean == "elements" else len(targets))


def _precision(first: Tensor, second: Tensor | None = None) -> torch.dtype:
    other = torch.float32 if second is None else torch.promote_types(second.dtype, torch.float32)
    return torch.promote_types(first.dtype, other)
