"""Teach an image classifier new classes from unlabelled images, stage after stage."""

from importlib.metadata import PackageNotFoundError, version

from inlay.data import ImageSet, Stages
from inlay.errors import InlayError
from inlay.evaluation import Scores
from inlay.learner import Learner
from inlay.prediction import Prediction

try:
    __version__ = version("inlay")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

load = Learner.load

__all__ = ["ImageSet", "InlayError", "Learner", "Prediction", "Scores", "Stages", "__version__", "load"]
