"""Running the demonstration and writing down what came out."""

import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from rich.console import Console

import inlay
from inlay.data import ImageSet, Stages
from inlay.demo.baselines import demo_baselines
from inlay.demo.recipe import BACKBONE, demo_settings, demo_stages
from inlay.engine.checkpoint import write_json, writing
from inlay.engine.progress import Progress, QuietProgress
from inlay.errors import InlayError
from inlay.knowledge import StageRecord
from inlay.learner import Learner
from inlay.pipeline import Workshop
from inlay.review import DiscoveredClass, Report, Results, RunFacts, StageSection, render, validate_results
from inlay.review.results import Merge, Metrics, StageResults
from inlay.run_folder import RunFolder

__all__ = ["DemoOutcome", "run_demo"]

_EXAMPLES = 18


@dataclass(frozen=True)
class DemoOutcome:
    """What a demonstration wrote.

    Attributes:
        results: The numbers.
        results_file: The file that holds them.
        report: The page that shows them.
        run: The run folder.
    """

    results: Results
    results_file: Path
    report: Path
    run: Path


def run_demo(
    folder: Path,
    seed: int = 0,
    *,
    baselines: bool = True,
    progress: Progress | None = None,
    command: str = "inlay demo",
) -> DemoOutcome:
    """Learn base digits, discover two stages of others, score everything and write the report.

    Args:
        folder: Where to write; the stages of a demonstration that was stopped there are taken up.
        seed: Seed of split and initialisation.
        baselines: Whether to run the baselines.
        progress: Receiver of news.
        command: The command line, for the record.

    Raises:
        InlayError: If the folder holds a demonstration with another seed, or it is stopped or cannot be written.
    """
    began = time.monotonic()
    news = progress or QuietProgress()
    stages = demo_stages(seed)
    news.note(_as_text(stages))
    run = folder / "run.inlay"
    results: list[StageResults] = []
    discovered: list[tuple[DiscoveredClass, ...]] = []
    for stage in range(stages.count + 1):
        learner = _learned(run, stages, stage, seed, news)
        labelled = stages.labelled(stage) if stage else None
        scores = learner.evaluate(stages.test(stage), match=labelled).to_json()
        metrics = cast(Metrics, {name: value for name, value in scores.items() if name != "counts"})
        results.append(_stage_results(learner.stages[stage], metrics, stages))
        discovered.append(() if labelled is None else _discovered(learner, labelled))
    if baselines:
        base = Learner.load(run, stage=0, device="cpu").knowledge
        found = demo_baselines(stages, base, seed, Workshop(progress=news))
        for stage_results, stage_baselines in zip(results[1:], found, strict=True):
            stage_results["baselines"] = stage_baselines
    seconds = time.monotonic() - began
    everything = Results(command=command, seed=seed, versions=_versions(), seconds=seconds, stages=results)
    return _written(folder, everything, discovered)


def _learned(run: Path, stages: Stages, stage: int, seed: int, progress: Progress) -> Learner:
    """Return the learner after a stage, doing the stage if the run folder does not have it."""
    finished = RunFolder.open(run).stage_count if RunFolder.exists(run) else 0
    settings = demo_settings()
    if finished > stage:
        learner = Learner.load(run, stage=stage, device="cpu", progress=progress)
        if (learner.seed, learner.settings) != (seed, settings):
            raise InlayError(f"{run.parent} holds a demonstration with another seed or settings; choose another --out.")
        return learner
    if stage == 0:
        learner = Learner(BACKBONE, settings=settings, seed=seed, device="cpu", run=run, progress=progress)
        learner.fit(stages.base)
    else:
        learner = Learner.load(run, device="cpu", progress=progress)
        learner.discover(stages.unlabelled(stage), len(stages.class_names(stage)))
    return learner


def _stage_results(record: StageRecord, metrics: Metrics, stages: Stages) -> StageResults:
    return StageResults(
        name=f"stage {record.index}" if record.index else "base",
        kind="novel" if record.index else "base",
        classes=list(stages.class_names(record.index)),
        metrics=metrics,
        merge=cast(Merge | None, record.merge),
        baselines=None,
        seconds=record.seconds,
    )


def _discovered(learner: Learner, labelled: ImageSet) -> tuple[DiscoveredClass, ...]:
    """Show each class of the latest stage by some of its images, the surest first."""
    record = learner.stages[-1]
    assert labelled.labels is not None
    truth = [labelled.class_names[label] for label in labelled.labels.tolist()]
    matched = learner.matched_names(record.index)
    ids = [entry.id for entry in learner.classes.of_stage(record.index)]
    scores = learner.knowledge.logits(labelled)[:, ids]
    clusters = torch.tensor(record.clusters)
    found = []
    for cluster, name in enumerate(record.class_names):
        members = torch.nonzero(clusters == cluster).flatten()
        surest = members[scores[members, cluster].argsort(descending=True)]
        right = sum(truth[member] == matched[cluster] for member in members.tolist())
        purity = right / len(members) if len(members) else None
        # Every n-th of the members, so that the sheet shows the unsure ones as well.
        chosen = surest[:: max(1, len(surest) // _EXAMPLES)][:_EXAMPLES]
        found.append(DiscoveredClass(name, matched[cluster], len(members), purity, labelled.images[chosen]))
    return tuple(found)


def _written(folder: Path, results: Results, discovered: list[tuple[DiscoveredClass, ...]]) -> DemoOutcome:
    validate_results(results)
    write_json(folder / "results.json", results)
    sections = tuple(
        StageSection(**stage, discovered=classes) for stage, classes in zip(results["stages"], discovered, strict=True)
    )
    facts = RunFacts(results["command"], results["seed"], results["versions"], results["seconds"])
    summary = (
        "Handwritten digits: four were taught with labels, the others were found in unlabelled images in two stages; "
        "no image of an earlier stage was kept."
    )
    report = folder / "report.html"
    page = render(Report("inlay: new digits without labels", summary, sections, facts))
    with writing(report):
        report.write_text(page, encoding="utf-8")
    return DemoOutcome(results, folder / "results.json", report, folder / "run.inlay")


def _versions() -> dict[str, str]:
    return {"inlay": inlay.__version__, "torch": str(torch.__version__), "python": platform.python_version()}


def _as_text(stages: Stages) -> str:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(stages.table())
    return captured.get().rstrip()
