"""Tables of runs in which something was varied: the ladder from ADM to inlay, ablations, gates, diagnoses."""

from collections.abc import Sequence

from benchmarks.results_paper import BASES, DATASETS, REFERENCES, SYSTEMS, Paper
from benchmarks.results_provenance import provenance
from benchmarks.results_runs import FIRST, NOTHING, Run, figure, row, scores, table

from inlay.bench.variants import GROUPS as VARIANTS

__all__ = ["GROUPS", "PRINTED", "variant_sections"]

PRINTED = "printed"
GROUPS: dict[str, list[tuple[str, str]]] = {
    "The ladder from ADM to inlay": [
        (PRINTED, "ADM as the paper prints it"),
        ("adm", "ADM, our run"),
        *((variant.name, variant.tells) for variant in VARIANTS["ladder"]),
        ("inlay", "+ everything else in the preset inlay; with our base recipe the last step"),
    ],
    "Compressed schedule against full length": [
        ("frost", "compressed"),
        ("frost-full-length", "full length"),
        ("adm", "compressed"),
        ("adm-full-length", "full length"),
    ],
    "Parts of ADM": [
        ("adm", "everything in place"),
        *((variant.name, variant.tells) for variant in VARIANTS["ablations"]),
    ],
    "Gates": [
        ("adm", "AMM: σ(−γ), the paper's gate"),
        ("imm", "IMM: branches without a gate"),
        *((variant.name, variant.tells) for variant in VARIANTS["gates"]),
    ],
    "Diagnoses, by which no setting was chosen": [
        (variant.name, f"{variant.system}: {variant.tells}") for variant in VARIANTS["diagnosis"]
    ],
}


def variant_sections(runs: Sequence[Run], paper: Paper) -> list[str]:
    """Return a section for each group of variants, and one for the variants that are in no group."""
    sections = [_section(title, lines, runs, paper) for title, lines in GROUPS.items()]
    known = {name for lines in GROUPS.values() for name, _ in lines} | SYSTEMS.keys() | REFERENCES.keys()
    others = sorted({run.label for run in runs if run.named} - known)
    if others:
        sections.append(_section("Other variants", [(name, NOTHING) for name in others], runs, paper))
    return sections


def _section(title: str, lines: Sequence[tuple[str, str]], runs: Sequence[Run], paper: Paper) -> str:
    """Return a table of variants; beside what they vary alone there is nothing to show."""
    used: list[Run] = []
    rows = []
    for name, change in lines:
        found = [run for run in runs if run.label == name and (run.named or (run.steps, run.split) == (1, FIRST))]
        used += found
        rows += _rows(name, change, found, paper)
    varied = any(run.named for run in used)
    return f"### {title}\n\n{table(rows)}\n\n{provenance(used if varied else [])}"


def _rows(name: str, change: str, runs: Sequence[Run], paper: Paper) -> list[dict[str, str]]:
    """Return a row for each setting in which a variant was run, and an empty one if there is none."""
    settings = sorted({(run.base != "reference", run.base, run.steps, run.split != FIRST, run.split) for run in runs})
    start = {"run": name, "what it changes": change}
    if name == PRINTED:
        return [start | {"setting": NOTHING} | _printed(paper)]
    if not settings:
        return [start | {"setting": NOTHING} | _cells([])]
    rows = []
    for _, base, steps, _, split in settings:
        found = [run for run in runs if (run.base, run.steps, run.split) == (base, steps, split)]
        rows.append(start | {"setting": _setting(base, steps, split)} | _cells(found))
    return rows


def _cells(runs: Sequence[Run]) -> dict[str, str]:
    return {
        f"{dataset} {key.capitalize()}": figure(scores(row(runs, dataset=name), key))
        for name, dataset in DATASETS.items()
        for key in ("old", "new", "all")
    }


def _printed(paper: Paper) -> dict[str, str]:
    return {
        f"{dataset} {key.capitalize()}": paper.shown("adm", name, key)
        for name, dataset in DATASETS.items()
        for key in ("old", "new", "all")
    }


def _setting(base: str, steps: int, split: str) -> str:
    parts = [BASES[base]]
    parts += [f"{steps} steps"] if steps > 1 else []
    parts += [f"split {split}"] if split != FIRST else []
    return ", ".join(parts)
