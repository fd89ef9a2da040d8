"""Training sets in which all classes count alike."""

import torch
from torch import Tensor

__all__ = ["balanced_subset"]


def balanced_subset(labels: Tensor, generator: torch.Generator, per_class: int | None = None) -> Tensor:
    """Draw equally many images of each class, without replacement: the set for balanced fine-tuning.

    Args:
        labels: Class of each image, int64 [N], from 0; a class without images is left out.
        generator: Source of the draw, on any device.
        per_class: Most images of a class; a class that has fewer gives all. None takes as many as the smallest
            class has.

    Returns:
        Indices of the drawn images in rising order, int64 [M].

    Raises:
        ValueError: If the labels are not a vector of images, or fewer than one image per class is asked for.
    """
    if labels.ndim != 1 or not len(labels):
        raise ValueError(f"labels must be [N] with N above 0; got {tuple(labels.shape)}")
    if per_class is not None and per_class < 1:
        raise ValueError(f"per_class must be 1 or more; got {per_class}")
    sizes = torch.bincount(labels)
    most = int(sizes[sizes > 0].min()) if per_class is None else per_class
    shuffled = torch.randperm(len(labels), generator=generator, device=generator.device).to(labels.device)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    starts = sizes.cumsum(dim=0) - sizes
    places = torch.arange(len(labels), device=labels.device) - starts[labels[by_class]]
    return by_class[places < most].sort().values
