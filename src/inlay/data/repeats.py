"""Images that are there more than once."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from inlay.data.findings import Repeats
from inlay.data.imagesets import FoundSet

__all__ = ["find_repeats"]

_MOST_NAMED = 10


def find_repeats(sets: Sequence[FoundSet]) -> dict[str, Repeats]:
    """Find equal images within classes, between classes of a set, and between sets, see `Findings.repeats`."""
    if not sets:
        return {}
    prints = np.concatenate([each.prints for each in sets])
    owners = np.repeat(np.arange(len(sets)), [len(each.prints) for each in sets])
    places = np.concatenate([np.flatnonzero(each.good) for each in sets])
    labels = np.concatenate([each.good_labels() for each in sets])
    # Equal images are side by side in this order, those of a set together, and among them those of a class.
    order = np.lexsort((places, labels, owners, prints))
    same, same_owner, same_label = (values[order][1:] == values[order][:-1] for values in (prints, owners, labels))

    def pairs(where: npt.NDArray[np.bool_], pictures: bool) -> Repeats:
        firsts, seconds = order[:-1][where], order[1:][where]
        chosen = np.argsort(firsts, kind="stable")[:_MOST_NAMED]
        first, second = ([sets[owners[at]].name(places[at]) for at in ends[chosen]] for ends in (firsts, seconds))
        count = len(np.unique(prints[firsts])) if pictures else len(firsts)
        return Repeats(count, tuple(zip(first, second, strict=True)))

    return {
        "within classes": pairs(same & same_owner & same_label, pictures=False),
        "between classes": pairs(same & same_owner & ~same_label, pictures=True),
        "between sets": pairs(same & ~same_owner, pictures=True),
    }
