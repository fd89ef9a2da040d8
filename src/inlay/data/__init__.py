"""Images: reading them from wherever they are, and cutting benchmarks into stages."""

from inlay.data.decode import decode_image
from inlay.data.demo import demo_digits
from inlay.data.images import Images, ImageSet
from inlay.data.source import load, open_images, splits
from inlay.data.stages import Stages
from inlay.data.streamed import StreamedSet

__all__ = [
    "ImageSet",
    "Images",
    "Stages",
    "StreamedSet",
    "decode_image",
    "demo_digits",
    "load",
    "open_images",
    "splits",
]
