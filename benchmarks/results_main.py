"""Table 1: printed and own figures of every system, with one base recipe."""

from collections.abc import Mapping, Sequence

from benchmarks.results_paper import AVERAGE, BASES, DATASETS, REFERENCES, SYSTEMS, Paper
from benchmarks.results_provenance import provenance
from benchmarks.results_runs import FIRST, SCORES, Run, figure, mean, row, scores, table

from inlay.errors import InlayError

__all__ = ["main_sections"]

TITLES = SYSTEMS | REFERENCES


def main_sections(runs: Sequence[Run], paper: Paper, base: str) -> list[str]:
    """Return Table 1 with one base recipe: heading, a section for each data set, and the average.

    Every system has a line where the base recipe is the paper's, and those that were run where it is ours.
    """
    chosen = [run for run in runs if (run.base, run.steps, run.split) == (base, 1, FIRST)]
    run_too = {run.label for run in chosen}
    shown = {label: title for label, title in TITLES.items() if base == "reference" or label in run_too}
    parts = [_dataset_section(chosen, shown, paper, dataset) for dataset in DATASETS]
    return [f"## Table 1, {BASES[base]}", *parts, _average_section(chosen, shown, paper)]


def _dataset_section(runs: Sequence[Run], shown: Mapping[str, str], paper: Paper, dataset: str) -> str:
    found = {label: row(runs, label=label, dataset=dataset) for label in TITLES}
    _check_same_base([run for label in SYSTEMS for run in found[label]])
    lines = [
        {"system": title}
        | _compared(paper, label, dataset, [figure(scores(found[label], key)) for key in SCORES.values()])
        for label, title in shown.items()
    ]
    used = [run for line in found.values() for run in line]
    notes = [_note(paper, dataset), _base_accuracy([run for run in used if run.label in SYSTEMS]), provenance(used)]
    return "\n\n".join(filter(None, [f"### {DATASETS[dataset]}", table(lines), *notes]))


def _average_section(runs: Sequence[Run], shown: Mapping[str, str], paper: Paper) -> str:
    used: list[Run] = []
    lines = []
    for label, title in shown.items():
        found = [{run.seed: run for run in row(runs, label=label, dataset=dataset)} for dataset in DATASETS]
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in found)))
        by_run = [[by_seed[seed] for by_seed in found] for seed in seeds]
        used += [run for together in by_run for run in together]
        ours = [figure(mean(scores(together, key)) for together in by_run) for key in SCORES.values()]
        lines.append({"system": title} | _compared(paper, label, AVERAGE, ours))
    notes = [_note(paper, AVERAGE), "Ours are averaged over the seeds that were run on all three data sets."]
    return "\n\n".join(filter(None, ["### Average", table(lines), *notes, provenance(used)]))


def _compared(paper: Paper, label: str, dataset: str, ours: Sequence[str]) -> dict[str, str]:
    """Return printed and own figures side by side."""
    cells: dict[str, str] = {}
    for (title, key), own in zip(SCORES.items(), ours, strict=True):
        cells |= {f"{title}, paper": paper.shown(label, dataset, key), f"{title}, ours": own}
    return cells


def _note(paper: Paper, dataset: str) -> str:
    found = paper.contradictions(dataset)
    cells = f"Printed figures that rounding cannot explain: {'; '.join(found)}." if found else ""
    return " ".join(filter(None, [cells, paper.remarks.get(dataset, "")]))


def _check_same_base(runs: Sequence[Run]) -> None:
    for run in runs:
        if run.facts["base_recipe"] != runs[0].facts["base_recipe"]:
            raise InlayError(
                f"{runs[0].file} and {run.file} disagree in base_recipe, but the systems of a table share their base "
                f"stage; run one of them anew."
            )


def _base_accuracy(runs: Sequence[Run]) -> str:
    """Say how good the base stages are, and which systems of a seed did not start from the same one."""
    by_seed: dict[int, dict[str, list[str]]] = {}
    for run in runs:
        if base := run.facts["base_metrics"]:
            shown = f"{100 * base['all']:.2f}"
            by_seed.setdefault(run.seed, {}).setdefault(shown, []).append(SYSTEMS[run.label])
    seeds = []
    for seed, found in sorted(by_seed.items()):
        several = len(found) > 1
        values = [f"{value} ({', '.join(names)})" if several else value for value, names in found.items()]
        seeds.append(f"seed {seed}: {' and '.join(values)}")
    recipe = f" Recipe: {runs[0].facts['base_recipe']}." if runs else ""
    return f"Accuracy of the base stage on the base classes: {'; '.join(seeds)}.{recipe}" if seeds else ""
