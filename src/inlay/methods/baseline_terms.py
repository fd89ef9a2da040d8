"""Loss terms of the systems that the paper compares with: each joins one formula with its settings and its weight."""

import torch
from torch import Tensor
from torch.nn import functional

from inlay.backbones.twin import old_part, twin_part
from inlay.discovery.consistency import view_consistency
from inlay.discovery.neighbourhood import neighbourhood_contrastive
from inlay.discovery.pairs import cosine_pairs, extreme_pairs, pairwise_bce, rank_pairs
from inlay.discovery.queue import FeatureQueue
from inlay.discovery.ramp import ramp_up
from inlay.discovery.softened import softened_distillation
from inlay.discovery.student import target_divergence
from inlay.methods.model import StageOutputs
from inlay.methods.targets import ClusterTargets
from inlay.methods.term import Term
from inlay.settings import Settings

__all__ = ["CLUSTERING", "CONSISTENCY", "NEIGHBOURHOOD", "PAIRS", "RANKING", "SOFTENED"]


def _pairs(outputs: StageOutputs) -> Tensor:
    settings, features = outputs.task.settings.pairs, outputs.first.detach()
    if settings.rule == "rank":
        pairs = rank_pairs(features, min(settings.largest, features.shape[1]))
    else:
        pairs = cosine_pairs(features, settings.threshold)
    return pairwise_bce(*outputs.probabilities, pairs)


def _consistency(outputs: StageOutputs) -> Tensor:
    return view_consistency(*outputs.probabilities)


def _consistency_weight(settings: Settings, progress: float) -> float:
    return settings.consistency.weight * ramp_up(progress, settings.consistency.ramp)


def _neighbourhood(outputs: StageOutputs) -> Tensor:
    settings, queue = outputs.task.settings.neighbourhood, outputs.model.others["queue"]
    assert isinstance(queue, FeatureQueue)
    # Half as many as a class has in the queue, if all are equally large.
    neighbours = max(1, settings.queue // (2 * outputs.task.classes))
    loss = neighbourhood_contrastive(
        outputs.first,
        outputs.second,
        queue.entries(),
        neighbours,
        settings.temperature,
        settings.share,
        settings.published_ranking,
    )
    queue.push(outputs.first.detach())
    return loss


def _neighbourhood_weight(settings: Settings, progress: float) -> float:
    epochs = settings.training.epochs
    # Divided, as 49 times a 49th is less than 1.
    filled = epochs <= 1 or progress >= 1 / epochs
    return settings.neighbourhood.weight if filled else 0.0


def _clustering(outputs: StageOutputs) -> Tensor:
    targets = outputs.model.others["targets"]
    assert isinstance(targets, ClusterTargets)
    mean = outputs.task.settings.clustering.mean
    return target_divergence(targets.rows[outputs.batch.indices], outputs.probabilities[0], mean)


def _ranking(outputs: StageOutputs) -> Tensor:
    features, head = outputs.first, outputs.model.others["ranking"]
    with torch.no_grad():
        old = functional.softmax(outputs.task.head(old_part(features)), dim=1)
        pairs, mask = extreme_pairs(old @ old.T, outputs.task.settings.ranking.extremes)
    probabilities = functional.softmax(head(twin_part(features)), dim=1)
    return pairwise_bce(probabilities, probabilities, pairs, mask=mask)


def _softened(outputs: StageOutputs) -> Tensor:
    head, temperature = outputs.task.head, outputs.task.settings.softened.temperature
    return softened_distillation(head(old_part(outputs.first)), head(outputs.frozen), temperature)


PAIRS = Term("pairs", lambda s, _: s.pairs.weight, _pairs)
CONSISTENCY = Term("consistency", _consistency_weight, _consistency)
NEIGHBOURHOOD = Term("neighbourhood", _neighbourhood_weight, _neighbourhood)
CLUSTERING = Term("clustering", lambda s, _: s.clustering.weight, _clustering)
RANKING = Term("ranking", lambda s, _: s.ranking.weight, _ranking)
SOFTENED = Term("softened distillation", lambda s, _: s.softened.weight, _softened)
