"""What the learner says of one image."""

from dataclasses import dataclass

__all__ = ["Prediction"]


@dataclass(frozen=True)
class Prediction:
    """The most probable class of an image.

    Attributes:
        source: Where the image came from.
        id: Id of the class; it never changes.
        name: Name of the class at this time.
        probability: Its probability among all classes.
        discovered: Whether the class was found in unlabelled images.
    """

    source: str
    id: int
    name: str
    probability: float
    discovered: bool
