"""Loss terms of discovery stages: each joins one formula with its settings and its weight.

A new term is one function and one line at the end of this file, which lists the terms of all methods.
"""

import torch
from torch import Tensor
from torch.nn import functional

from inlay.data.draws import Draws
from inlay.discovery.assignment import assignment_of_first, swapped_assignment
from inlay.discovery.contrastive import contrastive
from inlay.discovery.distillation import feature_distillation
from inlay.discovery.information import mutual_information_loss
from inlay.discovery.ramp import ramp_up
from inlay.discovery.regularization import divergence_from_uniform
from inlay.discovery.replay import replay_loss
from inlay.discovery.self_training import self_training
from inlay.discovery.triplet import mine, triplet_comparison
from inlay.methods import baseline_terms
from inlay.methods.model import StageOutputs
from inlay.methods.term import Term
from inlay.settings import Settings

__all__ = [
    "ASSIGNMENT",
    "CONTRASTIVE",
    "DISTILLATION",
    "INFORMATION",
    "REGULARIZATION",
    "REPLAY",
    "SELF_TRAINING",
    "TERMS",
    "TRIPLET",
]


def _contrastive(outputs: StageOutputs) -> Tensor:
    settings = outputs.task.settings.contrastive
    return contrastive(*outputs.projections, settings.temperature, settings.form)


def _distillation(outputs: StageOutputs) -> Tensor:
    task, settings = outputs.task, outputs.task.settings.distillation
    loss = feature_distillation(outputs.first, outputs.frozen, settings.form)
    return loss * (task.statistics.present / task.classes) if settings.by_classes else loss


def _self_training(outputs: StageOutputs) -> Tensor:
    divide = outputs.task.settings.self_training.divide_by_classes
    return self_training(outputs.joint, outputs.novel[0], divide)


def _self_training_weight(settings: Settings, progress: float) -> float:
    return settings.self_training.weight * ramp_up(progress, settings.self_training.ramp)


def _triplet(outputs: StageOutputs) -> Tensor:
    settings = outputs.task.settings.triplet
    positive, negative = mine(outputs.first if settings.mining == "hybrid" else outputs.frozen)
    first, second = (functional.softmax(logits, dim=1) for logits in outputs.novel)
    others = first if settings.other_view == "first" else second
    novel = outputs.task.classes
    divisor = {"novel": novel, "all": outputs.task.old_classes + novel, "none": 1}[settings.divide_by]
    return triplet_comparison(first, others[positive], others[negative], settings.margin, divisor)


def _regularization(outputs: StageOutputs) -> Tensor:
    return divergence_from_uniform(outputs.novel[0])


def _replay(outputs: StageOutputs) -> Tensor:
    settings, statistics = outputs.task.settings.replay, outputs.task.statistics
    classes, size = statistics.present, statistics.mean.shape[1]
    numbers = torch.arange(classes * settings.per_class, device=statistics.mean.device)
    # The key itself is taken by the views.
    noise = Draws(outputs.batch.key + 1, numbers).normal(size)
    samples, labels = statistics.features_at(noise.view(classes, settings.per_class, size), settings.scale)
    assert outputs.model.joint_head is not None
    return replay_loss(outputs.model.joint_head, samples.to(outputs.first.dtype), labels)


def _assignment(outputs: StageOutputs) -> Tensor:
    settings = outputs.task.settings.assignment
    predict = swapped_assignment if settings.targets == "both" else assignment_of_first
    return predict(*outputs.novel, settings.temperature, settings.epsilon)


def _information(outputs: StageOutputs) -> Tensor:
    temperature = outputs.task.settings.assignment.temperature
    first, second = (functional.softmax(logits / temperature, dim=1) for logits in outputs.novel)
    return mutual_information_loss(first, second)


CONTRASTIVE = Term("contrastive", lambda s, _: s.contrastive.weight, _contrastive)
DISTILLATION = Term("distillation", lambda s, _: s.distillation.weight, _distillation)
SELF_TRAINING = Term("self-training", _self_training_weight, _self_training)
TRIPLET = Term("triplet", lambda s, _: s.triplet.weight, _triplet)
REGULARIZATION = Term("regularization", lambda s, _: s.regularization.weight, _regularization)
REPLAY = Term("replay", lambda s, _: s.replay.weight, _replay)
ASSIGNMENT = Term("assignment", lambda s, _: s.assignment.weight, _assignment)
INFORMATION = Term("information", lambda s, _: s.assignment.information, _information)

TERMS = (
    CONTRASTIVE,
    DISTILLATION,
    SELF_TRAINING,
    TRIPLET,
    REGULARIZATION,
    REPLAY,
    ASSIGNMENT,
    INFORMATION,
    baseline_terms.PAIRS,
    baseline_terms.CONSISTENCY,
    baseline_terms.NEIGHBOURHOOD,
    baseline_terms.CLUSTERING,
    baseline_terms.RANKING,
    baseline_terms.SOFTENED,
)
