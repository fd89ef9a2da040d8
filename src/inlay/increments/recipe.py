"""How labelled increments are trained: everything but the losses of a system."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inlay.settings import BranchSettings, TrainingSettings
from inlay.settings.parsing import changed

__all__ = ["MemorySettings", "Recipe"]


@dataclass(frozen=True)
class MemorySettings:
    """How many images of each class are kept for later stages.

    Attributes:
        per_class: Images of each class, however many classes there are.
        total: Images of all classes together, shared evenly; it counts if `per_class` is 0. With both 0 none is kept.
    """

    per_class: int = 20
    total: int = 0

    def share(self, classes: int) -> int:
        """Return how many images each of so many classes keeps."""
        return self.per_class or self.total // classes


@dataclass(frozen=True)
class Recipe:
    """The setting of a run of labelled increments.

    Attributes:
        backbone: Name of the network.
        view: Augmentation of the images.
        base: Training of the first stage.
        stage: Training of each later stage.
        tuning: Training of the head on as many images of each class, after each later stage; 0 epochs leave it out.
        memory: Images kept of each class.
        branch: What is trained in later stages; the gate "full" is the whole network.
        around: With branches, what else of the network is trained in later stages: "frozen" is nothing, "trained" is
            everything but the layers that have one.
    """

    backbone: str = "resnet32-rebuffi"
    view: str = "weak"
    base: TrainingSettings = field(default_factory=TrainingSettings)
    stage: TrainingSettings = field(default_factory=TrainingSettings)
    tuning: TrainingSettings = field(default_factory=lambda: TrainingSettings(epochs=0))
    memory: MemorySettings = field(default_factory=MemorySettings)
    branch: BranchSettings = field(default_factory=lambda: BranchSettings(gate="full"))
    around: Literal["frozen", "trained"] = "frozen"

    def changed(self, changes: Mapping[str, Any]) -> "Recipe":
        """Return a copy with fields replaced, named by dotted paths such as "stage.epochs".

        Raises:
            InlayError: If a field is unknown or a value does not fit it.
        """
        return changed(self, changes)
