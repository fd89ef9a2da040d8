"""Plain arrays in the many forms people keep them, brought to one form."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inlay.data.listing import class_order
from inlay.errors import InlayError

__all__ = ["Array", "Labels", "as_images", "as_labels", "is_array"]

Array: TypeAlias = Tensor | npt.NDArray[Any]
Labels: TypeAlias = Array | Sequence[int] | Sequence[str]

_CHANNELS = (1, 3)


def is_array(value: object) -> bool:
    """Whether a value is a torch tensor or a numpy array."""
    return isinstance(value, Tensor | np.ndarray)


def as_images(images: Array, origin: str) -> Tensor:
    """Bring images to one uint8 tensor.

    Args:
        images: [N, H, W], [N, H, W, C] or [N, C, H, W] with one or three channels; bytes, or floats in 0..1.
        origin: Where the images came from, for the error messages.

    Returns:
        A contiguous uint8 tensor [N, C, H, W].

    Raises:
        InlayError: The shape, the type or the range of values is none of these.
    """
    if not is_array(images):
        raise InlayError(f"The images of {origin} are a {type(images).__name__}; pass a numpy array or a tensor.")
    return _channels_first(_as_bytes(images, origin), origin).contiguous()


def as_labels(labels: Labels, class_names: Sequence[str] | None, origin: str) -> tuple[Tensor, tuple[str, ...]]:
    """Bring labels to indices into a list of class names.

    Args:
        labels: One integer or one string per image. With class names, an integer is an index into them and a
            string is one of them; without, the distinct labels become the class names (see `class_order`).
        class_names: The names of all classes in order, or None.
        origin: Where the labels came from, for the error messages.

    Returns:
        The labels as an int64 tensor [N], and the class names.

    Raises:
        InlayError: The labels are neither integers nor strings, or do not fit the class names.
    """
    values = _as_values(labels, origin)
    if values.ndim != 1:
        raise InlayError(f"The labels of {origin} have shape {list(values.shape)}; pass one label per image.")
    if isinstance(class_names, str):
        raise InlayError(f"The class names of {origin} are one text, '{class_names}'; pass a list of names.")
    names = None if class_names is None else tuple(str(name) for name in class_names)
    if names is not None and len(set(names)) != len(names):
        raise InlayError(f"The class names of {origin} contain a name twice; give each class a name of its own.")
    if values.size == 0:
        return torch.zeros(0, dtype=torch.int64), names or ()
    if all(isinstance(value, str) for value in values.tolist()):
        return _from_strings(values.tolist(), names, origin)
    if not np.issubdtype(values.dtype, np.integer):
        raise InlayError(f"The labels of {origin} are of type {values.dtype}; pass integers or strings.")
    return _from_integers(values.astype(np.int64), names, origin)


def _as_bytes(images: Array, origin: str) -> Tensor:
    if isinstance(images, Tensor):
        pixels = images.detach().cpu()
    elif images.dtype == np.uint8 or (np.issubdtype(images.dtype, np.floating) and images.dtype.itemsize <= 8):
        pixels = torch.tensor(images.astype(images.dtype.newbyteorder("="), copy=False))
    else:
        raise _wrong_type(images.dtype, origin)
    if pixels.dtype == torch.uint8:
        return pixels
    if not pixels.is_floating_point():
        raise _wrong_type(pixels.dtype, origin)
    # Written so that a NaN fails the test as well.
    if pixels.numel() and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise InlayError(f"The images of {origin} are floats outside 0..1; scale them to 0..1 or pass uint8.")
    return pixels.float().mul(255).round().to(torch.uint8)


def _wrong_type(dtype: object, origin: str) -> InlayError:
    return InlayError(f"The images of {origin} are of type {dtype}; pass uint8, or floats in 0..1.")


def _channels_first(pixels: Tensor, origin: str) -> Tensor:
    if pixels.ndim == 3:
        return pixels.unsqueeze(1)
    first = pixels.ndim == 4 and pixels.shape[1] in _CHANNELS
    last = pixels.ndim == 4 and pixels.shape[3] in _CHANNELS
    shape = list(pixels.shape)
    if first and last:
        raise InlayError(
            f"The images of {origin} have shape {shape}, where either end may be the channels; "
            "pass images wider and higher than 3 pixels."
        )
    if not (first or last):
        raise InlayError(
            f"The images of {origin} have shape {shape}; pass [N, H, W], [N, H, W, C] or [N, C, H, W] "
            "with 1 or 3 channels."
        )
    return pixels if first else pixels.permute(0, 3, 1, 2)


def _as_values(labels: Labels, origin: str) -> npt.NDArray[Any]:
    if isinstance(labels, Tensor):
        return labels.cpu().numpy()
    try:
        return np.asarray(labels)
    except ValueError as error:
        raise InlayError(f"The labels of {origin} differ in length; pass one integer or string per image.") from error


def _from_strings(labels: list[str], names: tuple[str, ...] | None, origin: str) -> tuple[Tensor, tuple[str, ...]]:
    if names is None:
        names = tuple(class_order(set(labels)))
    index = {name: number for number, name in enumerate(names)}
    unknown = next((label for label in labels if label not in index), None)
    if unknown is not None:
        raise InlayError(f"The label '{unknown}' of {origin} is not among the class names; add it to them.")
    return torch.tensor([index[label] for label in labels], dtype=torch.int64), names


def _from_integers(
    labels: npt.NDArray[np.int64], names: tuple[str, ...] | None, origin: str
) -> tuple[Tensor, tuple[str, ...]]:
    if labels.min() < 0:
        raise InlayError(
            f"The labels of {origin} contain {labels.min()}; number classes from 0, "
            "and leave the labels out for unlabelled images."
        )
    if names is None:
        distinct, positions = np.unique(labels, return_inverse=True)
        return torch.from_numpy(positions.astype(np.int64)), tuple(str(value) for value in distinct)
    if labels.max() >= len(names):
        raise InlayError(
            f"The label {labels.max()} of {origin} is beyond the {len(names)} class names; add the others."
        )
    return torch.from_numpy(labels), names
