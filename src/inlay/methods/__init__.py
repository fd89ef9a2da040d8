"""Discovery methods: compositions of loss terms, run by one algorithm."""

from inlay.methods.catalogue import METHODS, check_settings, method
from inlay.methods.method import Method
from inlay.methods.stage import adaptive_discovering_and_merging
from inlay.methods.supervised import BaseTask, train_base
from inlay.methods.task import StageOutcome, StageTask

__all__ = [
    "METHODS",
    "BaseTask",
    "Method",
    "StageOutcome",
    "StageTask",
    "adaptive_discovering_and_merging",
    "check_settings",
    "method",
    "train_base",
]
