"""Settings of a run: frozen dataclasses, one per part, and the presets: complete settings under a name."""

from inlay.settings.baseline_parts import (
    ClusteringSettings,
    ConsistencySettings,
    NeighbourhoodSettings,
    PairSettings,
    RankingSettings,
    SoftenedSettings,
)
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
    "ClusteringSettings",
    "ConsistencySettings",
    "ContrastiveSettings",
    "DistillationSettings",
    "NeighbourhoodSettings",
    "PairSettings",
    "RankingSettings",
    "RegularizationSettings",
    "ReplaySettings",
    "SelfTrainingSettings",
    "Settings",
    "SoftenedSettings",
    "TrainingSettings",
    "TripletSettings",
    "preset",
    "preset_names",
]
