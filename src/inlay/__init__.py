"""Teach an image classifier new classes from unlabelled images, stage after stage."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from inlay.data import ImageSet, Stages
from inlay.errors import InlayError
from inlay.evaluation import Scores
from inlay.learner import Learner
from inlay.prediction import Prediction

try:
    __version__ = version("inlay")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

if TYPE_CHECKING:
    from inlay.estimator import InlayClassifier

load = Learner.load

__all__ = [
    "ImageSet",
    "InlayClassifier",
    "InlayError",
    "Learner",
    "Prediction",
    "Scores",
    "Stages",
    "__version__",
    "load",
]


def __getattr__(name: str) -> object:
    # Scikit-learn takes seconds to import, so only when it is needed.
    if name == "InlayClassifier":
        from inlay.estimator import InlayClassifier

        return InlayClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
