"""Tables of the other settings: several steps, and classes split at random."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.results_paper import BASES, DATASETS, REFERENCES, SYSTEMS
from benchmarks.results_provenance import provenance
from benchmarks.results_runs import FIRST, NOTHING, SCORES, Run, figure, mean, row, scores, table

__all__ = ["split_sections", "step_sections"]

ALWAYS = ("frost", "adm", "inlay")
STEPS = (
    ("cifar100", 2, "reference", FIRST),
    ("tinyimagenet", 2, "reference", FIRST),
    ("cifar100", 5, "reference", FIRST),
)
SPLITS = (("cifar10", "reference"), ("cifar100", "reference"))
TITLES = SYSTEMS | REFERENCES


def step_sections(runs: Sequence[Run]) -> list[str]:
    """Return a section for each data set and number of steps, with a line for each system and stage."""
    chosen = [run for run in runs if not run.named and run.steps > 1]
    found = {(run.dataset, run.steps, run.base, run.split) for run in chosen}
    return [_step_section(chosen, *setting) for setting in [*STEPS, *sorted(found - set(STEPS))]]


def _step_section(runs: Sequence[Run], dataset: str, steps: int, base: str, split: str) -> str:
    chosen = [run for run in runs if (run.dataset, run.steps, run.base, run.split) == (dataset, steps, base, split)]
    rows = [
        _stage_row(label, row(chosen, label=label), stage, steps)
        for label in _labels(chosen)
        for stage in range(1, steps + 1)
    ]
    drawn = "" if split == FIRST else f", split {split}"
    title = f"{DATASETS[dataset]}, {steps} steps, {BASES[base]}{drawn}"
    return f"### {title}\n\n{table(rows)}\n\n{provenance(chosen)}"


def _stage_row(label: str, runs: Sequence[Run], stage: int, steps: int) -> dict[str, str]:
    metrics = [found for run in runs if (found := _after(run, stage)) is not None]
    cells = {"system": TITLES[label], "after stage": str(stage), "Old": figure(m["groups"]["base"] for m in metrics)}
    for group in range(1, steps + 1):
        cells[f"New-{group}"] = figure(m["groups"].get(f"stage{group}") for m in metrics)
    return cells | {"All": figure(m["all"] for m in metrics)}


def _after(run: Run, stage: int) -> Mapping[str, Any] | None:
    """Return the scores after a stage; a run that learned all classes at once has those of the last alone."""
    if stage == run.steps:
        found: Mapping[str, Any] = run.facts["metrics"]
        return found
    return run.facts["stages"][stage - 1]["metrics"] if run.facts["stages"] else None


def split_sections(runs: Sequence[Run]) -> list[str]:
    """Return a section for each data set whose classes were split at random, with each split and their mean."""
    chosen = [run for run in runs if not run.named and run.steps == 1 and run.split != FIRST]
    found = {(run.dataset, run.base) for run in chosen}
    return [_split_section(chosen, *setting) for setting in [*SPLITS, *sorted(found - set(SPLITS))]]


def _split_section(runs: Sequence[Run], dataset: str, base: str) -> str:
    chosen = [run for run in runs if (run.dataset, run.base) == (dataset, base)]
    rows = [line for label in _labels(chosen) for line in _split_rows(label, row(chosen, label=label))]
    return f"### {DATASETS[dataset]}, {BASES[base]}\n\n{table(rows)}\n\n{provenance(chosen)}"


def _split_rows(label: str, runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return a line for each split of a system, and the mean of the splits' means."""
    by_split = {split: [run for run in runs if run.split == split] for split in sorted({run.split for run in runs})}
    rows = [
        {"system": TITLES[label], "split": split} | {title: figure(scores(found, key)) for title, key in SCORES.items()}
        for split, found in by_split.items()
    ]
    means = {title: figure(mean(scores(found, key)) for found in by_split.values()) for title, key in SCORES.items()}
    return [*rows, {"system": TITLES[label], "split": "mean of splits" if rows else NOTHING} | means]


def _labels(runs: Sequence[Run]) -> list[str]:
    """Return the systems of a table in the paper's order: those that every table has, and those that were run."""
    run_too = {run.label for run in runs}
    return [label for label in TITLES if label in ALWAYS or label in run_too]
