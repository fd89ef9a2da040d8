"""What happens to the classifier once the branches are merged: assign, describe, refit."""

import torch
from torch import Tensor, nn

from inlay.discovery.assignment import sinkhorn
from inlay.discovery.drift import drift_map, drift_residual
from inlay.discovery.refit import refit_linear
from inlay.discovery.statistics import ClassStatistics, class_statistics
from inlay.engine.randomness import generator
from inlay.methods.model import StageModel
from inlay.methods.task import StageTask

__all__ = ["settle_classifier"]

_BALANCING_ROUNDS = 50


@torch.no_grad()
def settle_classifier(
    task: StageTask, model: StageModel, network: nn.Module
) -> tuple[nn.Linear, ClassStatistics, Tensor]:
    """Assign the images to the new classes, describe all classes and settle the joint head.

    Args:
        task: The stage.
        model: The trained heads.
        network: The merged network.

    Returns:
        The joint head over O + K classes, their statistics, and the new class of each image, [N].
    """
    features = task.features(network)
    assignments = _assigned(task, model.novel_logits(features, task.old_classes))
    old = _moved(task, features) if task.settings.classifier.drift else task.statistics
    kind = task.settings.replay.statistics
    new = class_statistics(features, assignments, task.classes, kind, allow_empty=True)
    head = model.joint_head.requires_grad_(False)
    if task.settings.classifier.refit:
        samples, labels = _samples_of_new(task, new, features, assignments)
        _refit(task, head, old, samples, labels)
    return head, old.joined(new), assignments


def _assigned(task: StageTask, scores: Tensor) -> Tensor:
    """Return the new class of each image, [N], from the scores of the new classes, [N, K]."""
    settings = task.settings.assignment
    if settings.balanced:
        scores = sinkhorn(scores, settings.epsilon, _BALANCING_ROUNDS)
    return scores.argmax(dim=1)


def _moved(task: StageTask, features: Tensor) -> ClassStatistics:
    """Return the statistics of the old classes in the feature space after the stage."""
    settings = task.settings.classifier
    matrix, offset = drift_map(task.frozen_features, features, settings.ridge)
    residual = drift_residual(task.frozen_features, features, matrix, offset)
    return task.statistics.mapped(matrix, offset, residual if settings.drift_residual else None)


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
