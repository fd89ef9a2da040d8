"""Base stages, each trained once and then shared by all runs that start from it."""

import dataclasses
from pathlib import Path

import torch

from inlay.bench.places import Places, one_at_a_time
from inlay.bench.plan import Run
from inlay.data import ImageSet
from inlay.discovery.statistics import ClassStatistics, StatisticsKind
from inlay.engine.progress import Progress
from inlay.knowledge import Knowledge
from inlay.learner import Learner
from inlay.pipeline import base_identity
from inlay.run_folder import RunFolder
from inlay.saving import save_run
from inlay.settings import Settings, preset

__all__ = ["base_stage", "reduced", "start_run"]


def base_stage(images: ImageSet, run: Run, settings: Settings, places: Places, progress: Progress) -> Learner:
    """Return a learner after the base stage of a run, which is trained only if no other run has done so.

    Args:
        images: Labelled images of the base classes.
        run: The run.
        settings: Its settings.
        places: Where base stages are kept.
        progress: Receiver of news.

    Raises:
        InlayError: If training is stopped or diverges, or the folder cannot be written.
    """
    shared = _shared_settings(settings)
    name = f"{run.dataset}-{run.backbone}-seed{run.seed}-{base_identity(images, run.backbone, shared, run.seed)}"
    folder = places.work / "bases" / name
    learner = Learner(run.backbone, settings=shared, seed=run.seed, device=places.device, run=folder, progress=progress)
    with one_at_a_time(folder.with_suffix(".lock")):
        learner.fit(images)
    return learner


def start_run(base: Knowledge, settings: Settings, folder: Path) -> None:
    """Begin a run with a copy of a base stage, which keeps of its classes what the run wants; one begun is left alone.

    Args:
        base: What is known after the base stage, with full statistics.
        settings: Settings of the run.
        folder: Folder of the run.

    Raises:
        InlayError: If the folder cannot be written.
    """
    if not RunFolder.exists(folder):
        statistics = reduced(base.statistics, settings.replay.statistics)
        save_run(folder, [dataclasses.replace(base, statistics=statistics, settings=settings).to_files()])


def reduced(statistics: ClassStatistics, kind: StatisticsKind) -> ClassStatistics:
    """Keep of full statistics what a simpler kind has.

    Args:
        statistics: Full statistics of classes that all have samples.
        kind: What to keep.
    """
    if kind == "full":
        return statistics
    std = statistics.std.double().mean(dim=0).float() if kind == "shared" else statistics.std
    correlation = None
    if kind == "pooled":
        weights = (statistics.counts - 1).double() / (statistics.counts - 1).sum()
        covariances = torch.stack([statistics.covariance(index) for index in range(len(statistics))])
        within = torch.tensordot(weights, covariances, 1)
        spread = within.diagonal().sqrt()
        correlation = (within / (spread[:, None] * spread)).half()
    return ClassStatistics(statistics.mean, statistics.counts, std, correlation)


def _shared_settings(settings: Settings) -> Settings:
    """Everything that does not touch the base stage takes one value, so that runs can share it.

    The values are those of a method that trains nothing, so that base stages outlive changes of the others.
    """
    common = preset("kmeans")
    replay = dataclasses.replace(common.replay, statistics="full")
    return dataclasses.replace(common, base=settings.base, replay=replay)
