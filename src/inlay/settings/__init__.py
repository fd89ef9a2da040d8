"""Settings of a run: frozen dataclasses, one per part, and the presets `inlay` and `paper`."""

from inlay.settings.parts import (
    AssignmentSettings,
    BaseSettings,
    BranchSettings,
    ClassifierSettings,
    ContrastiveSettings,
    DistillationSettings,
    RegularizationSettings,
    ReplaySettings,
    SelfTrainingSettings,
    TrainingSettings,
    TripletSettings,
)
from inlay.settings.presets import preset, preset_names
from inlay.settings.whole import Settings

__all__ = [
    "AssignmentSettings",
    "BaseSettings",
    "BranchSettings",
    "ClassifierSettings",
    "ContrastiveSettings",
    "DistillationSettings",
    "RegularizationSettings",
    "ReplaySettings",
    "SelfTrainingSettings",
    "Settings",
    "TrainingSettings",
    "TripletSettings",
    "preset",
    "preset_names",
]
