"""Table of what the systems cost: size, memory and time."""

import statistics
from collections.abc import Sequence

from benchmarks.results_paper import DATASETS, REFERENCES, SYSTEMS
from benchmarks.results_provenance import provenance
from benchmarks.results_runs import NOTHING, Run, row, table

from inlay.bench.datasets import BENCHMARKS

__all__ = ["cost_section"]

TITLES = SYSTEMS | REFERENCES

_SHARED = "Several runs shared one device, so a run alone takes far less time than these seconds."


def cost_section(runs: Sequence[Run]) -> str:
    """Return size, memory and time of every system, apart for each hardware."""
    plain = [run for run in runs if not run.named]
    places = list(TITLES)
    keys = {(list(DATASETS).index(run.dataset), run.steps, places.index(run.label), run.base) for run in plain}
    lines = []
    for dataset, steps, place, base in sorted(keys):
        found = row(plain, dataset=list(DATASETS)[dataset], steps=steps, label=places[place], base=base)
        for hardware in sorted({run.facts["hardware"] for run in found}):
            lines.append(_cost([run for run in found if run.facts["hardware"] == hardware]))
    return "\n\n".join([_SHARED, *([table(lines)] if lines else []), provenance(plain)])


def _cost(runs: Sequence[Run]) -> dict[str, str]:
    first = runs[0]
    classes = BENCHMARKS[first.dataset].classes
    kept = [run.facts["stored_bytes"] for run in runs]
    seconds = [run.facts["seconds"] for run in runs]
    return {
        "data set": DATASETS[first.dataset],
        "steps": str(first.steps),
        "system": TITLES[first.label],
        "base recipe": first.base,
        "parameters": _range([run.facts["parameters"] for run in runs]),
        "bytes kept per class": _range([None if total is None else total / classes for total in kept]),
        "base stage, s": _seconds([found["base"] for found in seconds]),
        "discovery stages, s": _seconds([sum(found["stages"]) for found in seconds]),
        "runs": str(len(runs)),
        "hardware": first.facts["hardware"],
    }


def _range(values: Sequence[float | None]) -> str:
    found = sorted({round(value) for value in values if value is not None})
    return " to ".join(f"{value:,}" for value in dict.fromkeys((found[0], found[-1]))) if found else NOTHING


def _seconds(values: Sequence[float | None]) -> str:
    found = [value for value in values if value]
    return f"{statistics.fmean(found):,.0f}" if found else NOTHING
