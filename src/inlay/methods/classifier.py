"""What happens to the classifier once the branches are merged: assign, describe, and refit or set side by side."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from inlay.backbones.twin import TwinNetwork, padded_head
from inlay.discovery.assignment import sinkhorn
from inlay.discovery.calibration import measure_scale
from inlay.discovery.drift import Drift, drift_between
from inlay.discovery.refit import refit_linear
from inlay.discovery.statistics import ClassStatistics, class_statistics
from inlay.engine.randomness import generator
from inlay.heads import ConcatenatedHead
from inlay.increments.shrinkage import shrunk
from inlay.methods.model import StageModel
from inlay.methods.task import StageTask

__all__ = ["Settled", "settle_classifier", "settle_heads_side_by_side"]

_BALANCING_ROUNDS = 50
_SAMPLES_FOR_SCALE = 200
# People label few images; the refit would take the spread of so few for that of the class.
_BORROWED_IMAGES = 5


class Settled(NamedTuple):
    """The classifier after a stage.

    Attributes:
        head: Head over O + K classes: the joint head, or old and novel head side by side.
        statistics: Statistics of all O + K classes.
        assignments: New class of each image of new classes, [N].
        features: Features of these images, [N, D].
        drift: How the features of images moved; None where they did not, or nobody will ask.
    """

    head: nn.Linear | ConcatenatedHead
    statistics: ClassStatistics
    assignments: Tensor
    features: Tensor
    drift: Drift | None = None


@torch.no_grad()
def settle_classifier(task: StageTask, model: StageModel, network: nn.Module) -> Settled:
    """Assign the images to the new classes, unless these were given, describe all classes and settle the joint head.

    Args:
        task: The stage.
        model: The trained heads.
        network: The merged network.
    """
    # Nothing has moved where nothing was trained.
    features = task.frozen_features if task.settings.branch.gate == "frozen" else task.features(network)
    moved = features is not task.frozen_features
    drift = drift_between(task.frozen_features, features, task.settings.classifier.ridge) if moved else None
    old = _moved(task, drift) if drift is not None and task.settings.classifier.drift else task.statistics
    if task.labels is None:
        assignments = _assigned(task, model.novel_logits(features, task.old_classes))
    else:
        is_new = task.labels >= task.old_classes
        features, assignments = features[is_new], task.labels[is_new] - task.old_classes
    kind = task.settings.replay.statistics
    new = class_statistics(features, assignments, task.classes, kind, allow_empty=True)
    if task.labels is not None:
        new = shrunk(new, old, _BORROWED_IMAGES)
    assert model.joint_head is not None
    head = model.joint_head.requires_grad_(False)
    if task.settings.classifier.refit:
        samples, labels = _samples_of_new(task, new, features, assignments)
        _refit(task, head, old, samples, labels)
    return Settled(head, old.joined(new), assignments, features, drift)


@torch.no_grad()
def settle_heads_side_by_side(task: StageTask, model: StageModel, network: nn.Module) -> Settled:
    """Assign the images to the new classes, describe all classes, and set the old head and the novel one side by side.

    The two were never compared. What each says of what it knows is measured, so that their scores can be brought to
    one scale: the old head on replayed features, the novel one on the images of the stage.

    Args:
        task: The stage.
        model: The trained heads.
        network: The trained network.
    """
    assert model.novel_head is not None
    features = task.features(network)
    novel = model.novel_head.requires_grad_(False)
    assignments = _assigned(task, novel(features))
    old_head, old = task.head, task.statistics
    if isinstance(network, TwinNetwork):
        old_head, old = padded_head(old_head), _padded(old)
    new = class_statistics(features, assignments, task.classes, task.settings.replay.statistics, allow_empty=True)
    replayed, _ = old.sample(_SAMPLES_FOR_SCALE, generator(task.seed, "head scale", device=task.device))
    scales = measure_scale(old_head(replayed.to(features.dtype))), measure_scale(novel(features))
    return Settled(ConcatenatedHead(old_head, novel, *scales), old.joined(new), assignments, features)


def _padded(statistics: ClassStatistics) -> ClassStatistics:
    """Return the statistics of old classes among the features of a twin network, of which they use the first half."""
    size = statistics.mean.shape[1]
    identity = torch.eye(size, dtype=statistics.mean.dtype, device=statistics.mean.device)
    matrix = torch.cat([identity, torch.zeros_like(identity)])
    return statistics.mapped(matrix, matrix.new_zeros(2 * size))


def _assigned(task: StageTask, scores: Tensor) -> Tensor:
    """Return the new class of each image, [N], from the scores of the new classes, [N, K]."""
    settings = task.settings.assignment
    if settings.balanced:
        scores = sinkhorn(scores, settings.epsilon, _BALANCING_ROUNDS)
    return scores.argmax(dim=1)


def _moved(task: StageTask, drift: Drift) -> ClassStatistics:
    """Return the statistics of the old classes in the feature space after the stage."""
    residual = drift.residual if task.settings.classifier.drift_residual else None
    return task.statistics.mapped(drift.matrix, drift.offset, residual)


def _samples_of_new(
    task: StageTask, new: ClassStatistics, features: Tensor, assignments: Tensor
) -> tuple[Tensor, Tensor]:
    if task.settings.classifier.refit_new == "features":
        return features, assignments
    randomness = generator(task.seed, "refit", "new", device=task.device)
    return new.sample(_samples_per_class(task), randomness, task.settings.replay.scale)


def _refit(task: StageTask, head: nn.Linear, old: ClassStatistics, samples: Tensor, labels: Tensor) -> None:
    """Fit the joint head anew, in place, on replayed features of old classes and those of new ones."""
    settings = task.settings
    randomness = generator(task.seed, "refit", "old", device=task.device)
    old_samples, old_labels = old.sample(_samples_per_class(task), randomness, settings.replay.scale)
    with torch.enable_grad():
        weight, bias = refit_linear(
            torch.cat([old_samples, samples]),
            torch.cat([old_labels, task.old_classes + labels]),
            task.old_classes + task.classes,
            weight_decay=settings.classifier.refit_decay,
        )
    head.weight.copy_(weight)
    head.bias.copy_(bias)


def _samples_per_class(task: StageTask) -> int:
    settings = task.settings.classifier
    share = settings.refit_samples // (task.old_classes + task.classes)
    return max(1, min(settings.refit_per_class, share))
