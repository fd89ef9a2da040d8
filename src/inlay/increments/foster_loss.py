"""Losses of FOSTER: boosting by a second network, then compression of both into one.

Formulas of Wang et al. (FOSTER: Feature Boosting and Compression for Class-Incremental Learning, ECCV 2022), as in
the published code.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.discovery.softened import softened_distillation

__all__ = ["balanced_distillation", "boosting_losses", "class_weights"]


def class_weights(counts: Tensor, beta: float) -> Tensor:
    """Weigh classes by the inverse of the effective number of their images.

    (1 - β) / (1 - βⁿ) for a class of n images, scaled so that the mean over the classes is 1. Rare classes weigh
    more; β = 0 weighs all alike, and β near 1 by 1 / n.

    Args:
        counts: Training images of each class, each 1 or more, [C].
        beta: The β, from 0 below 1.

    Returns:
        Weights, [C], float32.

    Raises:
        ValueError: If a class has no images, or β is out of range.
    """
    if counts.ndim != 1 or not len(counts) or bool((counts < 1).any()):
        raise ValueError("counts must be [C], with one image or more of each class")
    if not 0 <= beta < 1:
        raise ValueError(f"beta must be from 0 below 1; got {beta}")
    sizes = counts.double()
    # The constant 1 - β is cancelled by the scaling.
    inverse = 1 / -torch.expm1(sizes * torch.full_like(sizes, beta).log())
    return (inverse / inverse.mean()).float()


def boosting_losses(
    logits: Tensor,
    enhancing_logits: Tensor,
    old_logits: Tensor,
    labels: Tensor,
    weights: Tensor,
    temperature: float = 2.0,
) -> dict[str, Tensor]:
    """Teach a new network what the frozen old one beside it cannot tell.

    "classification" is the cross-entropy of the joint logits, aligned: each is divided by the weight of its class,
    so that rare classes must reach larger ones. "enhancement" is the plain cross-entropy of a head on the new
    features alone. "distillation" is the cross-entropy of the joint logits of old classes, softened, against those
    of the old head.

    Args:
        logits: Logits of the joint head on both networks' features, old classes first, [B, C].
        enhancing_logits: Logits of the head on the new features, [B, C].
        old_logits: Logits of the old network's own head, [B, O]; no gradient flows to them.
        labels: Classes of the images, int64 [B].
        weights: Positive weights of the classes, [C]; see `class_weights`.
        temperature: Divisor of the logits in the distillation, above 0.

    Returns:
        The three summands, scalar means over the images in at least float32; their sum is the loss.

    Raises:
        ValueError: If the shapes do not fit or the temperature is not above 0.
    """
    if logits.ndim != 2 or enhancing_logits.shape != logits.shape or labels.shape != logits.shape[:1]:
        raise ValueError(
            f"both logits must be [B, C] and labels [B]; "
            f"got {tuple(logits.shape)}, {tuple(enhancing_logits.shape)}, {tuple(labels.shape)}"
        )
    _check_weights(weights, logits)
    precision = torch.promote_types(logits.dtype, torch.float32)
    wide = logits.to(precision)
    return {
        "classification": F.cross_entropy(wide / weights.to(precision), labels),
        "enhancement": F.cross_entropy(enhancing_logits.to(precision), labels),
        "distillation": softened_distillation(wide[:, : old_logits.shape[-1]], old_logits, temperature),
    }


def balanced_distillation(
    student_logits: Tensor, teacher_logits: Tensor, weights: Tensor, temperature: float = 2.0
) -> Tensor:
    """Teach one network the predictions of two, raised for rare classes.

    The cross-entropy of the softened student against the softened teacher, whose probabilities are multiplied by
    the weights of the classes and normalised again.

    Args:
        student_logits: Logits of the network in training, [B, C].
        teacher_logits: Logits of the two networks for the same images, [B, C]; no gradient flows to them.
        weights: Positive weights of the classes, [C]; see `class_weights`.
        temperature: Divisor of all logits, above 0.

    Returns:
        The scalar mean over the images, in at least float32.

    Raises:
        ValueError: If the shapes do not fit or the temperature is not above 0.
    """
    _check_weights(weights, teacher_logits)
    precision = torch.promote_types(teacher_logits.dtype, torch.float32)
    # As a summand of the logits, the weights cannot make all probabilities of an image vanish.
    raised = teacher_logits.to(precision) + temperature * weights.to(precision).log()
    return softened_distillation(student_logits, raised, temperature)


def _check_weights(weights: Tensor, logits: Tensor) -> None:
    if weights.shape != logits.shape[1:]:
        raise ValueError(f"weights must be [C] beside logits {tuple(logits.shape)}; got {tuple(weights.shape)}")
