"""Losses of iCaRL: new classes from labels, old ones from the network before the stage."""

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.discovery.softened import softened_distillation

__all__ = ["binary_loss", "distilled_losses"]


def binary_loss(logits: Tensor, labels: Tensor, old_logits: Tensor | None = None) -> Tensor:
    """Teach every class as a question of yes or no, the answers for old classes given by the old network.

    One sigmoid cross-entropy, averaged over images and classes: targets are 1 or 0 by label for new classes and
    the old network's sigmoids for old classes, also for images of those classes. The form of iCaRL in the code of
    PODNet's authors, which the printed iCaRL figures come from.

    Args:
        logits: Logits over all classes seen, old ones first, [B, C].
        labels: Classes of the images, int64 [B].
        old_logits: Logits of the network before the stage for the same images, [B, O]; no gradient flows to them.
            None in the base stage.

    Returns:
        The scalar mean over all B·C entries, in at least float32.

    Raises:
        ValueError: If the shapes do not fit.
    """
    _check(logits, labels, old_logits)
    precision = torch.promote_types(logits.dtype, torch.float32)
    targets = (labels[:, None] == torch.arange(logits.shape[1], device=labels.device)).to(precision)
    if old_logits is not None:
        old = old_logits.detach().to(precision).sigmoid()
        targets = torch.cat([old, targets[:, old.shape[1] :]], dim=1)
    return F.binary_cross_entropy_with_logits(logits.to(precision), targets)


def distilled_losses(
    logits: Tensor, labels: Tensor, old_logits: Tensor, temperature: float = 2.0, weight: float = 0.25
) -> dict[str, Tensor]:
    """Classify among all classes while the softened predictions over old ones stay: cross-entropy and distillation.

    CE(all) + weight · T² · KL(old ‖ current), the divergence between softmaxes at temperature T over the old
    classes. At T = 2 the default weight leaves the mean divergence itself, as in LUCIR and AANets; its gradient
    is also that of an unscaled cross-entropy against softened targets.

    Args:
        logits: Logits over all classes seen, old ones first, [B, C].
        labels: Classes of the images, int64 [B].
        old_logits: Logits of the network before the stage for the same images, [B, O]; no gradient flows to them.
        temperature: Divisor T of the logits in the distillation, above 0.
        weight: Factor on T² times the divergence.

    Returns:
        The summands "classification" and "distillation", scalar means over the images in at least float32; their
        sum is the loss.

    Raises:
        ValueError: If the shapes do not fit or the temperature is not above 0.
    """
    _check(logits, labels, old_logits)
    precision = torch.promote_types(logits.dtype, torch.float32)
    logits, old_logits = logits.to(precision), old_logits.detach().to(precision)
    current = logits[:, : old_logits.shape[1]]
    entropy = softened_distillation(old_logits, old_logits, temperature, scaled=True)
    divergence = softened_distillation(current, old_logits, temperature, scaled=True) - entropy
    return {"classification": F.cross_entropy(logits, labels), "distillation": weight * divergence}


def _check(logits: Tensor, labels: Tensor, old_logits: Tensor | None) -> None:
    if logits.ndim != 2 or logits.numel() == 0 or labels.shape != logits.shape[:1]:
        raise ValueError(f"logits must be [B, C] and labels [B]; got {tuple(logits.shape)}, {tuple(labels.shape)}")
    if old_logits is None:
        return
    if old_logits.ndim != 2 or len(old_logits) != len(logits) or not 0 < old_logits.shape[1] < logits.shape[1]:
        raise ValueError(
            f"old logits must be [B, O] with 0 < O < C beside logits {tuple(logits.shape)}; "
            f"got {tuple(old_logits.shape)}"
        )
