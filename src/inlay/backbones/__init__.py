"""Networks that turn images into features."""

from inlay.backbones.catalogue import build, names
from inlay.backbones.features import feature_size

__all__ = ["build", "feature_size", "names"]
