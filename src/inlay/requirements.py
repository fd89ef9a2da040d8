"""What a stage needs of images and settings, refused in one sentence before any work is done."""

from operator import index

import torch

from inlay.data.images import Images
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from inlay.methods import check_settings
from inlay.registry import ClassRegistry, check_class_name
from inlay.settings import Settings

__all__ = [
    "check_base",
    "check_continues",
    "check_known",
    "check_labelled",
    "check_max_forgetting",
    "check_unlabelled",
    "whole_number",
]

_SMALLEST_SIDE = 8


def check_base(images: Images) -> None:
    """Refuse images that no classifier can be trained on.

    Raises:
        InlayError: If labels, classes or images are missing, or the images are too small.
    """
    _check_classes(images, "fit", fewest=2)
    if min(images.size) < _SMALLEST_SIDE:
        raise InlayError(
            f"fit needs images of at least {_SMALLEST_SIDE} pixels a side, not {min(images.size)}; pass a larger "
            f"--size."
        )


def check_max_forgetting(drop: float | None) -> None:
    """Refuse a limit of forgetting that limits nothing; one below 0 asks for accuracy to rise.

    Raises:
        InlayError: If it is not a number from -1 to 1.
    """
    if drop is not None and not (isinstance(drop, int | float) and -1 <= drop <= 1):
        raise InlayError(f"The largest drop in accuracy cannot be {drop!r}; write a number below 1, such as 0.05.")


def check_labelled(images: Images) -> None:
    """Refuse images from which no new classes can be learned.

    Raises:
        InlayError: If labels or images are missing.
    """
    _check_classes(images, "learn", fewest=1)


def check_known(images: Images, registry: ClassRegistry) -> None:
    """Refuse labelled images of a class that is known.

    Args:
        images: Labelled images.
        registry: The classes so far.

    Raises:
        InlayError: If a class has the name of an active one.
    """
    known = {entry.name for entry in registry.active()}
    again = next((name for name in images.class_names if name in known), None)
    if again is not None:
        raise InlayError(
            f"learn is for new classes, and this run has a class {again!r} already; leave its images out, or give the "
            f"new class another name."
        )


def _check_classes(images: Images, verb: str, fewest: int) -> None:
    """Refuse images without labels, or of which some class has too few."""
    if images.labels is None:
        raise InlayError(f"{verb} needs labels; give a folder with one sub-folder per class.")
    if len(images.class_names) < fewest:
        number = "two classes" if fewest > 1 else "one class"
        raise InlayError(f"{verb} needs images of at least {number}; give a folder with one sub-folder per class.")
    for name in images.class_names:
        check_class_name(name)
    sizes = torch.bincount(images.labels, minlength=len(images.class_names)).tolist()
    if 0 in sizes:
        empty = images.class_names[sizes.index(0)]
        raise InlayError(
            f"{verb} needs images of each class, but there are none of {empty!r}; add some or leave it out."
        )
    if max(sizes) < 2:
        raise InlayError(f"{verb} needs more than one image of a class; give more images.")


def whole_number(given: int, what: str) -> int:
    """Return a number as one of Python, whatever library it comes from.

    Args:
        given: The number.
        what: What it is the number of, as a sentence begins.

    Raises:
        InlayError: If it is not a whole number.
    """
    try:
        return index(given)
    except TypeError as error:
        raise InlayError(f"{what} must be a whole number, such as 5; got {given!r}.") from error


def check_unlabelled(images: Images, classes: int) -> None:
    """Refuse images in which so many classes cannot be found.

    Raises:
        InlayError: If there are too few images or classes.
    """
    if classes < 1:
        raise InlayError(f"The number of new classes must be at least 1; got {classes}.")
    if len(images) <= classes == 1:
        raise InlayError(f"Finding a new class needs at least two images; got {len(images)}: give more images.")
    if len(images) <= classes:
        raise InlayError(
            f"Finding {classes} new classes needs more than {classes} images; got {len(images)}: give more images "
            f"or a smaller number of classes."
        )


def check_continues(knowledge: Knowledge, settings: Settings) -> None:
    """Refuse settings under which no stage can follow.

    Args:
        knowledge: What is known.
        settings: Settings of the next stage.

    Raises:
        InlayError: If they name something unknown, or want other statistics of classes than the run keeps.
    """
    check_settings(settings)
    kept, wanted = knowledge.statistics.kind, settings.replay.statistics
    if kept != wanted:
        raise InlayError(
            f"This run keeps {kept!r} statistics of its classes and cannot go on with {wanted!r} ones; set "
            f"replay.statistics={kept}."
        )
