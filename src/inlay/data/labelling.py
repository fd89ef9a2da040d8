"""Labels of a set of images, and what is left of them when images are chosen."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from inlay.errors import InlayError

__all__ = ["check_labels", "chosen_classes", "chosen_positions"]


def check_labels(labels: Tensor | None, class_names: Sequence[str], count: int) -> None:
    """Refuse labels that do not fit their class names or the images.

    Args:
        labels: Indices into the class names, or None.
        class_names: Names of the classes.
        count: Number of images.

    Raises:
        ValueError: They do not fit each other.
    """
    if len(set(class_names)) != len(class_names):
        raise ValueError("class_names must be distinct")
    if labels is None:
        if class_names:
            raise ValueError("class_names without labels")
        return
    if labels.dtype != torch.int64 or labels.shape != (count,):
        raise ValueError(f"labels must be int64 [{count}], not {labels.dtype} {list(labels.shape)}")
    if count and not (labels.min() >= 0 and labels.max() < len(class_names)):
        raise ValueError("labels must be indices into class_names")


def chosen_positions(indices: Tensor | npt.NDArray[Any] | Sequence[int], count: int) -> Tensor:
    """Read a choice of images as positions, int64 [M].

    Args:
        indices: Positions, or one truth value per image.
        count: Number of images to choose from.

    Raises:
        ValueError: The indices are neither.
    """
    chosen = torch.as_tensor(indices).cpu()
    if chosen.numel() == 0:
        chosen = chosen.long()
    if chosen.dtype == torch.bool and chosen.shape == (count,):
        chosen = chosen.nonzero().squeeze(1)
    if chosen.ndim != 1 or chosen.dtype == torch.bool or chosen.is_floating_point():
        raise ValueError(f"indices must be positions or {count} truth values")
    return chosen


def chosen_classes(labels: Tensor | None, class_names: Sequence[str], wanted: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Choose the images of some classes, in their present order.

    Args:
        labels: Indices into the class names, [N], or None.
        class_names: Names of the classes.
        wanted: The classes to keep.

    Returns:
        The positions of their images, int64 [M], and their labels as indices into `wanted`, int64 [M].

    Raises:
        InlayError: There are no labels, or no such class.
        ValueError: A name occurs twice.
    """
    if labels is None:
        raise InlayError("Unlabelled images cannot be chosen by class; load a folder with one sub-folder per class.")
    unknown = next((name for name in wanted if name not in class_names), None)
    if unknown is not None:
        raise InlayError(f"There is no class {unknown!r}; write one of {', '.join(class_names)}.")
    if len(set(wanted)) != len(wanted):
        raise ValueError("names must be distinct")
    renumbered = torch.full((len(class_names),), -1, dtype=torch.int64)
    for number, name in enumerate(wanted):
        renumbered[class_names.index(name)] = number
    labels = renumbered[labels]
    kept = (labels >= 0).nonzero().squeeze(1)
    return kept, labels[kept]
