"""Tables of other ways to score: heads that were never trained together, and the defects of the published code."""

from collections.abc import Mapping, Sequence

from benchmarks.results_paper import DATASETS, SYSTEMS
from benchmarks.results_provenance import provenance
from benchmarks.results_runs import FIRST, Run, figure, row, scores, table

from inlay.bench.systems import system

__all__ = ["released_section", "separate_section"]

SEPARATE_HEADS = [label for label in SYSTEMS if system(label).concatenated]


def separate_section(runs: Sequence[Run]) -> str:
    """Return the systems without a joint head, scored on concatenated heads, calibrated, and by the new head alone."""
    used: list[Run] = []
    lines = []
    for dataset in DATASETS:
        for label in SEPARATE_HEADS:
            found = _runs(runs, label, dataset)
            used += found
            cells = _cells(found, label, dataset, {"concatenated": "metrics", "calibrated": "calibrated"})
            lines.append(cells | {"new head alone": figure(scores(found, "new_head"))})
    return f"{table(lines)}\n\n{provenance(used)}"


def released_section(runs: Sequence[Run]) -> list[str]:
    """Return the runs that were also scored with the defects of the published code, if there are any."""
    used: list[Run] = []
    lines = []
    for dataset in DATASETS:
        for label in SYSTEMS:
            scored = [run for run in _runs(runs, label, dataset) if run.facts.get("released")]
            if scored:
                used += scored
                lines.append(_cells(scored, label, dataset, {"right": "metrics", "as released": "released"}))
    return [f"### Scored as the published code does\n\n{table(lines)}\n\n{provenance(used)}"] if lines else []


def _runs(runs: Sequence[Run], label: str, dataset: str) -> list[Run]:
    return row(runs, label=label, dataset=dataset, base="reference", steps=1, split=FIRST)


def _cells(runs: Sequence[Run], label: str, dataset: str, kinds: Mapping[str, str]) -> dict[str, str]:
    cells = {"data set": DATASETS[dataset], "system": SYSTEMS[label]}
    for title, kind in kinds.items():
        cells |= {f"{key.capitalize()}, {title}": figure(scores(runs, key, kind)) for key in ("old", "new", "all")}
    return cells
