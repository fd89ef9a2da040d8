"""Increments without exemplars: prototypes stand for old classes, and images are distilled as far as they look old."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "drawn_prototypes",
    "prototype_similarity",
    "selective_classification",
    "selective_distillation",
]


def prototype_similarity(features: Tensor, prototypes: Tensor) -> Tensor:
    """Measure how much each image looks like an old class: w_i, its largest cosine to a prototype (SSRE, CVPR 2022).

    Gradients flow to the features, as in the released code; detach the result for weights that are not trained.

    Args:
        features: Features of the model in training, [B, D].
        prototypes: Mean features of the old classes, [O, D]; no gradient flows to them.

    Returns:
        Similarities in -1..1, [B], in at least float32.

    Raises:
        ValueError: If there are no prototypes, or features and prototypes differ in size.
    """
    if features.ndim != 2 or prototypes.ndim != 2 or features.shape[1] != prototypes.shape[1] or not len(prototypes):
        raise ValueError(
            f"features must be [B, D] and prototypes [O, D]; got {tuple(features.shape)} and {tuple(prototypes.shape)}"
        )
    precision = torch.promote_types(features.dtype, torch.float32)
    cosines = F.normalize(features.to(precision)) @ F.normalize(prototypes.detach().to(precision)).T
    return cosines.max(dim=1).values


def selective_classification(
    logits: Tensor, labels: Tensor, similarity: Tensor | None = None, temperature: float = 0.1
) -> Tensor:
    """Classify images, those most that look least like an old class: the mean of (1 - w_i)·CE(logits_i / T).

    Without weights this is also the loss of SSRE's base stage and that of replayed prototypes.

    Args:
        logits: Scores of all classes, [B, C].
        labels: Classes of the images, [B].
        similarity: w of the images, [B]; see `prototype_similarity`. None weighs all images by 1.
        temperature: Divisor T of the logits, above 0.

    Returns:
        The scalar mean over images, in at least float32.

    Raises:
        ValueError: If the temperature is not above 0.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0; got {temperature}")
    precision = torch.promote_types(logits.dtype, torch.float32)
    losses = F.cross_entropy(logits.to(precision) / temperature, labels, reduction="none")
    return losses.mean() if similarity is None else ((1 - similarity) * losses).mean()


def selective_distillation(current: Tensor, frozen: Tensor, similarity: Tensor) -> Tensor:
    """Hold features close to the old ones, those most that look like an old class: Σ_i w_i·|f_i - f_old_i|.

    It is a sum and not a mean over images, as in the released code, so it grows with the batch.

    Args:
        current: Features of the model in training, [B, D].
        frozen: Features of the model before the stage for the same images, [B, D]; no gradient flows to them.
        similarity: w of the images, [B]; see `prototype_similarity`.

    Returns:
        The scalar sum over images, in at least float32.

    Raises:
        ValueError: If the shapes differ.
    """
    if current.shape != frozen.shape or current.ndim != 2 or similarity.shape != current.shape[:1]:
        raise ValueError(
            f"features must both be [B, D] and similarities [B]; "
            f"got {tuple(current.shape)}, {tuple(frozen.shape)} and {tuple(similarity.shape)}"
        )
    precision = torch.promote_types(current.dtype, torch.float32)
    # The derivative of vector_norm is 0 where both models agree exactly, as they do at the start.
    distances: Tensor = torch.linalg.vector_norm(current.to(precision) - frozen.detach().to(precision), dim=1)
    return (similarity * distances).sum()


def drawn_prototypes(prototypes: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Draw prototypes of old classes with replacement, each class as likely as another, as SSRE replays them.

    Args:
        prototypes: Mean features of the old classes, [O, D].
        draws: Independent numbers, uniform in 0..1, [N].

    Returns:
        Features, [N, D], and their classes, [N].
    """
    # A number just below 1 can round up to the number of classes.
    labels = (draws * len(prototypes)).long().clamp_max(len(prototypes) - 1)
    return prototypes[labels], labels
