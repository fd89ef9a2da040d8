"""Orders in which the classes of CIFAR-100 are learned in the literature."""

from collections.abc import Mapping

import numpy as np

from inlay.errors import InlayError

__all__ = ["ORDERS", "class_order"]

# Two orders go by the name "seed 1993": that of NumPy, and the list of iCaRL, which today's NumPy does not give.
_LISTED: Mapping[str, str] = {
    "icarl-1993": """
        87 0 52 58 44 91 68 97 51 15 94 92 10 72 49 78 61 14 8 86 84 96 18 24 32
        45 88 11 4 67 69 66 77 47 79 93 29 50 57 83 17 81 41 12 37 59 25 20 80 73
        1 28 6 46 62 82 53 9 31 75 38 63 33 74 27 22 36 3 16 21 60 19 70 90 89
        43 5 42 65 76 40 30 23 85 2 95 56 48 71 64 98 13 99 7 34 55 54 26 35 39
    """,
    "podnet-2": """
        58 30 93 69 21 77 3 78 12 71 65 40 16 49 89 46 24 66 19 41 5 29 15 73 11
        70 90 63 67 25 59 72 80 94 54 33 18 96 2 10 43 9 57 81 76 50 32 6 37 7
        68 91 88 95 85 4 60 36 22 27 39 42 34 51 55 28 53 48 38 17 83 86 56 35 45
        79 99 84 97 82 98 26 47 44 62 13 31 0 75 14 52 74 8 20 1 92 87 23 64 61
    """,
    "podnet-3": """
        71 54 45 32 4 8 48 66 1 91 28 82 29 22 80 27 86 23 37 47 55 9 14 68 25
        96 36 90 58 21 57 81 12 26 16 89 79 49 31 38 46 20 92 88 40 39 98 94 19 95
        72 24 64 18 60 50 63 61 83 76 69 35 0 52 7 65 42 73 74 30 41 3 6 53 13
        56 70 77 34 97 75 2 17 93 33 84 99 51 62 87 5 15 10 78 67 44 59 85 43 11
    """,
}
_CLASSES = 100
_NUMPY_SEED = 1993

ORDERS = ("numpy-1993", *_LISTED, "natural")
"""Names of the orders: of LUCIR and PyCIL; of iCaRL; the second and third of PODNet; by label."""


def class_order(name: str, classes: int = _CLASSES) -> list[int]:
    """Return the labels of the classes in an order.

    Args:
        name: One of `ORDERS`.
        classes: Number of classes; "numpy-1993" and "natural" are defined for any, the others for 100.

    Raises:
        InlayError: If there is no such order for so many classes.
    """
    if name == "natural":
        return list(range(classes))
    if name == "numpy-1993":
        return [int(label) for label in np.random.RandomState(_NUMPY_SEED).permutation(classes)]
    if name not in _LISTED:
        raise InlayError(f"There is no class order {name!r}; write one of: {', '.join(ORDERS)}.")
    if classes != _CLASSES:
        raise InlayError(f"The class order {name} is one of {_CLASSES} classes, not {classes}; write numpy-1993.")
    return [int(word) for word in _LISTED[name].split()]
