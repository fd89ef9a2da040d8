"""Targets of all images of a stage, made of their own assignments from time to time: DTC, ResTune."""

import torch
from torch import Tensor, nn

from inlay.backbones.twin import ResidualStudentHead
from inlay.discovery.kmeans import kmeans
from inlay.discovery.projection import StudentHead, principal_projection
from inlay.discovery.student import sharpened_targets
from inlay.engine.randomness import generator
from inlay.methods.model import StageModel
from inlay.methods.task import StageTask

__all__ = ["ClusterTargets", "refresh_targets", "residual_student_head", "student_head"]


class ClusterTargets(nn.Module):
    """The target of every image.

    Args:
        images: Number of images, N.
        classes: Number of new classes, K.

    Attributes:
        rows: Targets, rows that sum to 1, [N, K].
    """

    rows: Tensor

    def __init__(self, images: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.full((images, classes), 1 / classes))


def refresh_targets(task: StageTask, model: StageModel, epoch: int) -> None:
    """Make the targets anew, without augmentation, if an epoch is one of those in which that is due."""
    settings = task.settings
    if epoch % max(1, round(settings.clustering.refresh * settings.training.epochs)):
        return
    targets = model.others["targets"]
    assert isinstance(targets, ClusterTargets)
    with torch.no_grad():
        targets.rows.copy_(sharpened_targets(model.novel_logits(task.features(model.trunk), task.old_classes)))


def student_head(task: StageTask) -> StudentHead:
    """Return a head that starts from the principal directions of the frozen features and from k-means in them."""
    matrix, mean = principal_projection(task.frozen_features, task.classes)
    points = (task.frozen_features - mean) @ matrix.T
    return StudentHead(matrix, mean, kmeans(points, task.classes, generator(task.seed, "k-means")).centroids)


def residual_student_head(task: StageTask) -> ResidualStudentHead:
    """Return the same head for the sum of old and twin features."""
    return ResidualStudentHead(student_head(task))
