"""The settings of a whole run."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inlay.settings import baseline_parts, parts
from inlay.settings.parsing import build, changed

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """Everything that decides the outcome of a run besides data, backbone and seed.

    Attributes:
        method: Name of the discovery method, see `inlay.methods`.
        base: The labelled base stage.
        training: Schedule and optimiser of discovery stages.
        first_view: Augmentation of the first view of each unlabelled image.
        second_view: Augmentation of the second view.
        branch: What is trained in a discovery stage.
        contrastive: Eq. 1.
        distillation: Eq. 2.
        self_training: Eq. 3.
        triplet: Eq. 4.
        regularization: Eq. 5.
        replay: Eq. 6 and the statistics kept of each class.
        assignment: Clustering by prototypes.
        classifier: Heads and refit.
        pairs: Pairs of images that should share a class.
        consistency: Agreement of two views.
        neighbourhood: Neighbours among past features.
        clustering: Sharpened assignments.
        ranking: Pairs that the old head finds alike.
        softened: Softened predictions of the old head.
    """

    method: str = "inlay"
    base: parts.BaseSettings = field(default_factory=parts.BaseSettings)
    training: parts.TrainingSettings = field(default_factory=parts.TrainingSettings)
    first_view: str = "weak"
    second_view: str = "strong"
    branch: parts.BranchSettings = field(default_factory=parts.BranchSettings)
    contrastive: parts.ContrastiveSettings = field(default_factory=parts.ContrastiveSettings)
    distillation: parts.DistillationSettings = field(default_factory=parts.DistillationSettings)
    self_training: parts.SelfTrainingSettings = field(default_factory=parts.SelfTrainingSettings)
    triplet: parts.TripletSettings = field(default_factory=parts.TripletSettings)
    regularization: parts.RegularizationSettings = field(default_factory=parts.RegularizationSettings)
    replay: parts.ReplaySettings = field(default_factory=parts.ReplaySettings)
    assignment: parts.AssignmentSettings = field(default_factory=parts.AssignmentSettings)
    classifier: parts.ClassifierSettings = field(default_factory=parts.ClassifierSettings)
    pairs: baseline_parts.PairSettings = field(default_factory=baseline_parts.PairSettings)
    consistency: baseline_parts.ConsistencySettings = field(default_factory=baseline_parts.ConsistencySettings)
    neighbourhood: baseline_parts.NeighbourhoodSettings = field(default_factory=baseline_parts.NeighbourhoodSettings)
    clustering: baseline_parts.ClusteringSettings = field(default_factory=baseline_parts.ClusteringSettings)
    ranking: baseline_parts.RankingSettings = field(default_factory=baseline_parts.RankingSettings)
    softened: baseline_parts.SoftenedSettings = field(default_factory=baseline_parts.SoftenedSettings)

    @property
    def leaves_network(self) -> bool:
        """Whether the network stays as it is given, in the base stage and in all others."""
        return self.base.training.epochs == 0 and self.branch.gate == "frozen"

    def to_json(self) -> dict[str, Any]:
        """Return nested plain objects, one to one with the fields."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Settings":
        """Rebuild settings from nested plain objects.

        Raises:
            InlayError: If a field is unknown or has a value of the wrong kind.
        """
        return build(cls, data)

    def changed(self, changes: Mapping[str, Any]) -> "Settings":
        """Return a copy with fields replaced, named by dotted paths such as "training.epochs".

        Values may be given as text, as on a command line.

        Raises:
            InlayError: If a field is unknown or a value does not fit it.
        """
        return changed(self, changes)
