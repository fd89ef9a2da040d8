"""Figures below print, and beside each the runs that test its likely reasons."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.results_paper import BASES, DATASETS, REFERENCES, SYSTEMS, Paper
from benchmarks.results_runs import FIRST, NOTHING, SCORES, Run, figure, row, scores, table

from inlay.bench import Run as Planned
from inlay.bench.campaign import campaign
from inlay.bench.variants import GROUPS

__all__ = ["NOT_RUN", "reason_sections"]

NOT_RUN = "not yet run"
_INTRODUCTION = """\
A line for each experiment on a likely reason why a mean of Table 1 is below print, and by how many points it is.
`inlay` has no print and is held against the same system with a frozen backbone. The experiments are diagnoses: they are
made on the classes on which Table 1 is scored, so no setting is chosen by them, and they change nothing in Table 1.
Those on FRoST+AMM stand for FRoST+AFF as well, whose losses are the same. How printed figures were scored is another
likely reason, which needs no further training: where runs were scored so, a table further down shows them as the
published code scores. All reasons are discussed in [Reproducibility](../REPRODUCIBILITY.md#why-figures-differ)."""
_TELLS = {variant.name: variant.tells for variant in GROUPS["diagnosis"]} | {
    "frozen": "backbone frozen: features stay as they are",
    "full length": "full length, with the published batch",
}
# The losses are the same, and AMM is close to AFF in every figure, so that its runs speak for both.
_TESTED_BY = {"frost+aff": "frost+amm"}
_CONTROL = {"inlay": "frozen"}
_KEYS = {title: key for title, key in SCORES.items() if key != "harmonic"}


def reason_sections(runs: Sequence[Run], paper: Paper) -> list[str]:
    """Return the heading and the table; nothing if no figure is below print.

    Args:
        runs: The runs that the page shows.
        paper: Figures that the paper prints.
    """
    compared = [run for run in runs if (run.steps, run.split) == (1, FIRST)]
    lines = [
        {"data set": title, "system": system, "base recipe": base, "below": below} | cells
        for dataset, title in DATASETS.items()
        for base in BASES
        for label, system in SYSTEMS.items()
        if (below := _below([run for run in compared if (run.base, run.dataset) == (base, dataset)], label, paper))
        for cells in _experiments(runs, label, dataset, base)
    ]
    return ["## Figures below print", f"{_INTRODUCTION}\n\n{table(lines)}"] if lines else []


def _below(runs: Sequence[Run], label: str, paper: Paper) -> str:
    """Say by how much which means of a system are below print, or below those of its control."""
    found = row(runs, label=label)
    if not found:
        return ""
    if label in paper.systems:
        against = {key: percent / 100 for key, percent in paper.systems[label][found[0].dataset].items()}
    else:
        control = row(runs, label=_CONTROL[label])
        seeds = {run.seed for run in found} & {run.seed for run in control}
        found = [run for run in found if run.seed in seeds]
        against = _means([run for run in control if run.seed in seeds])
    ours = _means(found)
    short = {title: 100 * (against[key] - ours[key]) for title, key in _KEYS.items() if key in ours and key in against}
    if label in _CONTROL and short.get("All", 0.0) <= 0:
        return ""
    shown = ", ".join(f"{title} {points:.1f}" for title, points in short.items() if points > 0)
    return f"{shown} (frozen backbone)" if shown and label in _CONTROL else shown


def _means(runs: Sequence[Run]) -> dict[str, float]:
    return {key: statistics.fmean(run.facts["metrics"][key] for run in runs) for key in _KEYS.values()} if runs else {}


def _experiments(runs: Sequence[Run], label: str, dataset: str, base: str) -> list[dict[str, str]]:
    """Return the cells of each experiment that is planned for a figure; of one line if there is none."""
    planned: dict[str, list[Planned]] = {}
    for run in campaign(["diagnosis", "length"], [dataset]):
        if run.base == base and run.system in (_TESTED_BY.get(label, label), _CONTROL.get(label)):
            planned.setdefault("full length" if run.full_length else run.name or run.system, []).append(run)
    by_file = {run.file: run for run in runs}
    lines = []
    for name, wanted in planned.items():
        # A control has its first seed in Table 1.
        wanted = _with_first_seed(wanted) if name in REFERENCES else wanted
        found = [by_file[file] for file in map(_file, wanted) if file in by_file]
        lines.append({"likely reason": _TELLS[name]} | _figures(found) | {"runs": _links(wanted, by_file)})
    return lines or [{"likely reason": NOTHING} | _figures([]) | {"runs": "no experiment planned"}]


def _with_first_seed(runs: Sequence[Planned]) -> list[Planned]:
    first = [run for run in campaign(["table"]) if run.row == runs[0].row and run.dataset == runs[0].dataset]
    return [*first, *runs]


def _file(run: Planned) -> str:
    return f"{run.label}.json"


def _figures(runs: Sequence[Run]) -> dict[str, str]:
    return {title: figure(scores(runs, key)) for title, key in _KEYS.items()}


def _links(wanted: Iterable[Planned], by_file: Mapping[str, Run]) -> str:
    """Link the file of each seed that was run, and say which were not."""
    links, missing = [], []
    for run in wanted:
        if _file(run) in by_file:
            links.append(f"[seed {run.seed}](../benchmarks/results/table1/{_file(run)})")
        else:
            missing.append(str(run.seed))
    if not links:
        return NOT_RUN
    return ", ".join([*links, *([f"seed {' and '.join(missing)} {NOT_RUN}"] if missing else [])])
