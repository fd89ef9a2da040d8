"""The ten digits as a data set of the benchmark."""

from pathlib import Path

import numpy as np

from tiny_digits import digits

__all__ = ["write_digits"]

_NAMES = [str(digit) for digit in range(10)]


def write_digits(folder: Path) -> Path:
    """Write cifar10.npz with 20 training and 10 test images of each digit, 8 by 8 pixels, into a folder."""
    train, test = digits(_NAMES, 0, 20), digits(_NAMES, 20, 30)
    assert train.labels is not None
    assert test.labels is not None
    np.savez(
        folder / "cifar10.npz",
        train_images=train.images[:, 0].numpy(),
        train_labels=train.labels.numpy(),
        test_images=test.images[:, 0].numpy(),
        test_labels=test.labels.numpy(),
    )
    return folder
