"""What makes one discovery method differ from another."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from inlay.discovery.kmeans import kmeans
from inlay.discovery.whitening import mean_within_class_covariance, whitening
from inlay.engine.randomness import generator
from inlay.errors import InlayError
from inlay.heads import CosineHead, MappedCosineHead, NovelHead, linear
from inlay.methods.model import StageModel, StageOutputs
from inlay.methods.task import StageTask
from inlay.methods.term import Term
from inlay.methods.terms import TERMS
from inlay.settings import Settings

__all__ = ["Method", "linear_novel_head", "prototypes_from_kmeans"]

HeadMaker = Callable[[StageTask], NovelHead | None]
PartsMaker = Callable[[StageTask], dict[str, nn.Module]]
EpochStart = Callable[[StageTask, StageModel, int], None]


def _no_parts(task: StageTask) -> dict[str, nn.Module]:
    return {}


def _nothing_due(task: StageTask, model: StageModel, epoch: int) -> None:
    pass


@dataclass(frozen=True)
class Method:
    """A composition of loss terms and a novel head; one small file each.

    Attributes:
        name: Name in settings and on the command line.
        summary: One line for a list of methods.
        terms: The loss terms it may use; the settings give their weights. Without any, nothing is trained.
        novel_head: Makes the head over the new classes at the start of a stage; None from it means that the joint
            head's new outputs play its part.
        joint: Whether a joint head over all classes is trained; if not, the old head and the novel one are set side
            by side.
        parts: Makes further modules that its terms need, by name.
        begin_epoch: What is due before an epoch of the stage, from 0.
    """

    name: str
    summary: str
    terms: tuple[Term, ...]
    novel_head: HeadMaker
    joint: bool = True
    parts: PartsMaker = _no_parts
    begin_epoch: EpochStart = _nothing_due

    def weights(self, settings: Settings, progress: float) -> dict[str, float]:
        """Return the weights of the terms in use by name, at a fraction of the stage."""
        return {term.name: term.weight(settings, progress) for term in self._in_use(settings)}

    def losses(self, outputs: StageOutputs) -> dict[str, Tensor]:
        """Return the losses of a batch by name, without their weights; terms that never have one are left out."""
        return {term.name: term.loss(outputs) for term in self._in_use(outputs.task.settings)}

    def _in_use(self, settings: Settings) -> list[Term]:
        return [term for term in self.terms if term.weight(settings, 1.0)]

    def check(self, settings: Settings) -> None:
        """Refuse settings that this method would not obey.

        Raises:
            InlayError: If a term that is not part of the method has a weight, or no term has one, or heads are asked
                for that the method does not have.
        """
        weighted = [term for term in TERMS if term.weight(settings, 1.0)]
        for term in weighted:
            if term not in self.terms:
                names = ", ".join(own.name for own in self.terms) or "none"
                raise InlayError(
                    f"The method {self.name!r} has no {term.name} term, so set its weight to 0; it has: {names}."
                )
        if self.terms and not self._in_use(settings):
            raise InlayError(f"No loss of the method {self.name!r} has a weight; set at least one of them.")
        correlated = settings.replay.statistics in ("full", "pooled")
        if settings.classifier.decision == "densities" and not (correlated and self.joint):
            raise InlayError(
                "Densities need correlations and a joint head, so set replay.statistics=full or pooled with a method "
                "that has one, or classifier.decision=linear."
            )
        if not self.joint:
            wrong = {"heads=two": settings.classifier.heads == "one", "refit=false": settings.classifier.refit}
            wrong["drift=false"] = settings.classifier.drift
            for right in (right for right, is_wrong in wrong.items() if is_wrong):
                raise InlayError(f"The method {self.name!r} has no joint head, so set classifier.{right}.")


def linear_novel_head(task: StageTask) -> nn.Linear:
    """Return a linear head with random weights, as in the paper."""
    return linear(task.head.in_features, task.classes, generator(task.seed, "novel head"))


def prototypes_from_kmeans(task: StageTask) -> CosineHead | MappedCosineHead:
    """Return cosine prototypes at the centroids of spherical k-means on the frozen features, in the chosen metric."""
    settings, features = task.settings.assignment, task.frozen_features
    randomness = generator(task.seed, "k-means")
    if settings.metric == "plain":
        return CosineHead(kmeans(features, task.classes, randomness, spherical=True).centroids)
    within = mean_within_class_covariance(task.statistics)
    centre, matrix = whitening(within, features, settings.directions * task.classes, settings.metric_floor)
    clusters = kmeans((features - centre) @ matrix, task.classes, randomness, spherical=True)
    return MappedCosineHead(centre, matrix, clusters.centroids)
