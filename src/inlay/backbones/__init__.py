"""Networks that turn images into features."""

from inlay.backbones.catalogue import build, names
from inlay.backbones.efficientnet_lite import efficientnet_lite0
from inlay.backbones.features import feature_size
from inlay.backbones.pretrained import pretrained_efficientnet_lite0

__all__ = ["build", "efficientnet_lite0", "feature_size", "names", "pretrained_efficientnet_lite0"]
