"""One run: base stage, discovery stages, and the scores after each, written down as they come."""

import hashlib
import json
from pathlib import Path
from typing import Any

from inlay.bench.base_stage import base_stage, start_run
from inlay.bench.datasets import benchmark
from inlay.bench.diagnosis import HeadKeepingLearner, diagnose
from inlay.bench.places import Places, first_alone
from inlay.bench.plan import Run
from inlay.bench.recipe import settings_of
from inlay.bench.records import metrics_of, new_record, sizes_of
from inlay.bench.systems import system
from inlay.data import Stages
from inlay.engine.checkpoint import write_json
from inlay.engine.progress import Progress, QuietProgress
from inlay.evaluation import score
from inlay.learner import Learner
from inlay.settings import Settings

__all__ = ["measure"]


def measure(run: Run, places: Places, progress: Progress | None = None) -> None:
    """Run one system on one data set with one seed; what a stopped run has finished is not done again.

    Args:
        run: The run.
        places: Where to read and write.
        progress: Receiver of news; None is quiet.

    Raises:
        InlayError: If the data is missing, a setting is wrong, or training is stopped or diverges.
    """
    progress = progress or QuietProgress()
    settings = _paced(settings_of(run), places.pace)
    places.make_folders()
    together = system(run.system).supervised
    stages = _read(run, places, together)
    record = new_record(run, settings, places)
    base = base_stage(stages.base, run, settings, places, progress)
    record["seconds"]["base"] = base.stages[0].seconds
    if together:
        _score_together(run, base, stages, record)
    else:
        record["base_metrics"] = metrics_of(base.evaluate(stages.test(0)))
        write_json(places.result(run), record)
        _discover(base, settings, stages, _folder(run, base, settings, places), record, progress)
    write_json(places.result(run), record)


def _paced(settings: Settings, pace: str) -> Settings:
    return settings if pace == "auto" else settings.changed({"training.pace": pace, "base.training.pace": pace})


def _read(run: Run, places: Places, together: bool) -> Stages:
    # Image files are decoded once, into a cache that the next process finds.
    with first_alone(places.work / f"{run.dataset}.lock"):
        return benchmark(run.dataset).stages(places.data, run.steps, run.split_seed, together)


def _folder(run: Run, base: Learner, settings: Settings, places: Places) -> Path:
    """The folder of a run is that of its settings, so that no run goes on with the stages of another."""
    facts = json.dumps([base.stages[0].identity, settings.to_json()], sort_keys=True)
    identity = hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()
    return places.work / "runs" / f"{run.label}-{identity}"


def _discover(
    base: Learner, settings: Settings, stages: Stages, folder: Path, record: dict[str, Any], progress: Progress
) -> None:
    start_run(base.knowledge, settings, folder)
    learner = HeadKeepingLearner.load(folder, stage=0, device=str(base.device), progress=progress)
    learner.head_file = folder.with_name(f"{folder.name}-novel-head.safetensors")
    for index in range(1, stages.count + 1):
        done = learner.discover(stages.unlabelled(index), len(stages.class_names(index)))
        assert done is not None
        scores = learner.evaluate(stages.test(index), match=stages.labelled(index))
        metrics = metrics_of(scores)
        record["stages"].append({"metrics": metrics, "matched_on": scores.matched_on, "merge": done.merge})
        record["seconds"]["stages"].append(done.seconds)
    record.update(record["stages"][-1], **sizes_of(learner.knowledge), **diagnose(learner, stages))


def _score_together(run: Run, base: Learner, stages: Stages, record: dict[str, Any]) -> None:
    """Score a network that has learned all classes with labels as if they had come in stages."""
    cut = benchmark(run.dataset).cut(run.steps)
    class_stages = [index for index, count in enumerate(cut) for _ in range(count)]
    test = stages.test(0)
    assert test.labels is not None
    scores = score(base.knowledge.logits(test), test.labels, class_stages)
    record.update(metrics=metrics_of(scores), **sizes_of(base.knowledge))
