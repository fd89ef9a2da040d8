"""Other ways to do the stages of the demonstration, on the same images."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from inlay.data import ImageSet, Stages
from inlay.demo.recipe import BACKBONE, ceiling_settings, forgetful_settings, plain_settings
from inlay.engine.feed import feed_of
from inlay.engine.inference import features_of
from inlay.evaluation import Scores, score
from inlay.evaluation.benchmark import StageTruth, match_stage, score_learner
from inlay.evaluation.kmeans import kmeans_baseline
from inlay.knowledge import Knowledge
from inlay.pipeline import Workshop, learn_base, learn_stage
from inlay.review.results import Baselines, JointBaseline

__all__ = ["demo_baselines"]


def demo_baselines(stages: Stages, base: Knowledge, seed: int, workshop: Workshop) -> list[Baselines]:
    """Run every baseline.

    Args:
        stages: The split of the demonstration.
        base: What the demonstration knew after its base stage.
        seed: Seed of the demonstration.
        workshop: Where it is computed.

    Returns:
        The baselines of each discovery stage.
    """
    workshop.progress.note("Baselines: k-means, fine-tuning without memory, supervised training on everything.")
    plain = learn_base(stages.base, BACKBONE, plain_settings(), seed, replace(workshop, label="plain base: "))
    supervised = replace(workshop, label="supervised on everything: ")
    ceiling = learn_base(_everything(stages), BACKBONE, ceiling_settings(), seed, supervised)
    forgetting = replace(workshop, label="forgetful fine-tuning: ")
    forgetful = base
    truths: list[StageTruth] = []
    found: list[Baselines] = []
    for stage in range(1, stages.count + 1):
        classes = len(stages.class_names(stage))
        forgetful = learn_stage(forgetful, stages.unlabelled(stage), classes, forgetful_settings(), forgetting)
        truths.append(_truth(forgetful, stages.labelled(stage)))
        features = {"own": _kmeans_features(stages, stage, base, seed)}
        features["plain"] = _kmeans_features(stages, stage, plain, seed)
        best = max(features, key=lambda name: features[name])
        found.append(
            Baselines(
                kmeans_pixels={"new_head": _kmeans_pixels(stages, stage, seed)},
                kmeans_features={"new_head": features[best], "base": best},
                forgetful=_joint(_forgetful_scores(forgetful, stages, stage, truths)),
                supervised=_joint(_supervised_scores(ceiling, stages, stage)),
            )
        )
    return found


def _everything(stages: Stages) -> ImageSet:
    parts = [stages.base, *(stages.labelled(stage) for stage in range(1, stages.count + 1))]
    labels: list[Tensor] = []
    names: tuple[str, ...] = ()
    for part in parts:
        assert part.labels is not None
        labels.append(part.labels + len(names))
        names = (*names, *part.class_names)
    sources = tuple(name for part in parts for name in part.names)
    return ImageSet(torch.cat([part.images for part in parts]), sources, torch.cat(labels), names)


def _truth(knowledge: Knowledge, labelled: ImageSet) -> StageTruth:
    record = knowledge.record
    return match_stage(record.index, record.cluster_of(), len(record.class_names), labelled)


def _forgetful_scores(knowledge: Knowledge, stages: Stages, stage: int, truths: Sequence[StageTruth]) -> Scores:
    test = stages.test(stage)
    class_stages = [entry.stage for entry in knowledge.registry]
    return score_learner(knowledge.logits(test), test, stages.class_names(0), class_stages, truths)[0]


def _supervised_scores(ceiling: Knowledge, stages: Stages, stage: int) -> Scores:
    """Score the ceiling among the classes seen up to a stage; its outputs stand in the order of the stages."""
    test = stages.test(stage)
    assert test.labels is not None
    class_stages = [step for step in range(stage + 1) for _ in stages.class_names(step)]
    return score(ceiling.logits(test)[:, : len(class_stages)], test.labels, class_stages)


def _joint(scores: Scores) -> JointBaseline:
    return JointBaseline(old=scores.old, new=scores.new, all=scores.all)


def _new_test(stages: Stages, stage: int) -> ImageSet:
    return stages.test(stage).of_classes(stages.class_names(stage))


def _kmeans_pixels(stages: Stages, stage: int, seed: int) -> float:
    def pixels(images: ImageSet) -> Tensor:
        return images.images.flatten(1).float() / 255

    return _kmeans(pixels(stages.labelled(stage)), pixels(_new_test(stages, stage)), stages, stage, seed)


def _kmeans_features(stages: Stages, stage: int, knowledge: Knowledge, seed: int) -> float:
    def features(images: ImageSet) -> Tensor:
        feed = feed_of(images.pixels, knowledge.device)
        return features_of(knowledge.network, feed, knowledge.form.prepare)

    return _kmeans(features(stages.labelled(stage)), features(_new_test(stages, stage)), stages, stage, seed)


def _kmeans(train: Tensor, test: Tensor, stages: Stages, stage: int, seed: int) -> float:
    train_truth, test_truth = stages.labelled(stage).labels, _new_test(stages, stage).labels
    assert train_truth is not None and test_truth is not None
    return kmeans_baseline(train, test, train_truth, test_truth, len(stages.class_names(stage)), seed)
