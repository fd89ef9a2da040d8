"""Images: reading them from wherever they are, and cutting benchmarks into stages."""

from inlay.data.decode import decode_image
from inlay.data.demo import demo_digits
from inlay.data.images import ImageSet
from inlay.data.source import load, splits
from inlay.data.stages import Stages

__all__ = ["ImageSet", "Stages", "decode_image", "demo_digits", "load", "splits"]
