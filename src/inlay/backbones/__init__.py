"""Networks that turn images into features."""

from inlay.backbones.catalogue import build, names
from inlay.backbones.efficientnet_lite import efficientnet_lite
from inlay.backbones.features import feature_size
from inlay.backbones.named import FORMS, Backbone, begin, check_name, expected, scratch_warning, skeleton
from inlay.backbones.pretrained import pretrained_efficientnet_lite

__all__ = [
    "FORMS",
    "Backbone",
    "begin",
    "build",
    "check_name",
    "efficientnet_lite",
    "expected",
    "feature_size",
    "names",
    "pretrained_efficientnet_lite",
    "scratch_warning",
    "skeleton",
]
