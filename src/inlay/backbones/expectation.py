"""What a pretrained network expects of the images it is given."""

from dataclasses import dataclass

__all__ = ["Expected"]


@dataclass(frozen=True)
class Expected:
    """Colour images as a network saw them when it was trained.

    Attributes:
        size: Height and width.
        mean: What is subtracted from each channel of images in 0..1.
        std: What the differences are divided by.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
