"""How much a request may ask for."""

from dataclasses import asdict, dataclass

from PIL import Image

from inlay.engine.checkpoint import JsonObject

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """How much a request may ask for.

    Attributes:
        bytes: Longest body.
        images: Most images of a request.
        seconds: Time for a body to arrive, and once more for its images to be decoded.
        requests: Requests for predictions that are read or wait at a time.
    """

    bytes: int = 20_000_000
    images: int = 256
    seconds: float = 30.0
    requests: int = 16

    def to_json(self) -> JsonObject:
        """Return plain objects, with the most pixels of an image, which is Pillow's limit."""
        return {**asdict(self), "pixels": Image.MAX_IMAGE_PIXELS}
