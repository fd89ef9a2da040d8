"""The images that stand for the classes of a stage, and where they were; the pixels themselves are never kept."""

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from inlay.data.images import Images
from inlay.registry import ClassRegistry, Medoid

__all__ = ["MEDOIDS", "note_medoids", "place_of", "typical"]

MEDOIDS = 9
"""Most images that stand for a class."""


def place_of(source: Any) -> str:
    """Return where images are that can be read again: an absolute path, or "" for arrays, sets and lists of files.

    Args:
        source: Anything that `inlay.data.load` reads.
    """
    if not isinstance(source, str | os.PathLike):
        return ""
    path = os.path.abspath(os.path.expanduser(os.fspath(source)))
    return path if os.path.exists(path) else ""


def typical(features: Tensor, count: int) -> list[int]:
    """Return the rows of features [n, D] that are nearest to their mean, at most `count`, the nearest first."""
    away = (features - features.mean(dim=0)).square().sum(dim=1)
    return away.argsort(stable=True)[:count].tolist()


def note_medoids(
    registry: ClassRegistry, stage: int, images: Images, features: Tensor, labels: Tensor, source: str
) -> None:
    """Write down which images stand for the classes of a stage, by path and fingerprint.

    Args:
        registry: The classes, among them those of the stage; it is changed.
        stage: Number of the stage.
        images: The images that the stage has learned.
        features: Their features after the stage, [N, D].
        labels: The class of each among those of the stage, counted from 0, [N].
        source: What `place_of` says of the images. Paths are relative to it, or to its folder if it is a file; images
            that are no files of their own keep the name they have, such as "digits.npz#17".
    """
    labels, prints = labels.to(features.device), images.fingerprints()
    folder = os.path.dirname(source) if os.path.isfile(source) else source
    for label, entry in enumerate(registry.of_stage(stage)):
        members = (labels == label).nonzero().flatten()
        chosen = members[typical(features[members], MEDOIDS)].tolist()
        medoids = [Medoid(_within(folder, images.names[index]), prints[index]) for index in chosen]
        registry.annotate(entry.id, medoids=medoids)


def _within(folder: str, name: str) -> str:
    """Return the path of an image relative to a folder; the path as a whole without one."""
    # An image in an archive is called by both: "shard.tar#17.jpg".
    if not os.path.isfile(name) and not os.path.isfile(name.rpartition("#")[0]):
        return name
    path = os.path.abspath(name)
    return Path(os.path.relpath(path, folder)).as_posix() if folder else path
