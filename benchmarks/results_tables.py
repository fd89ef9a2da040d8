"""Write the tables of docs/results.md from benchmarks/results/{table1,tuning}/*.json and benchmarks/results/paper.json.

python -m benchmarks.results_tables [--check]
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.page import between, write_page
from benchmarks.results_cost import cost_section
from benchmarks.results_heads import released_section, separate_section
from benchmarks.results_main import main_sections
from benchmarks.results_missing import missing_section
from benchmarks.results_paper import BASES, DATASETS, REFERENCES, SYSTEMS, Paper, read_paper
from benchmarks.results_provenance import NO_RUNS
from benchmarks.results_reasons import reason_sections
from benchmarks.results_runs import Run, read_runs
from benchmarks.results_settings import split_sections, step_sections
from benchmarks.results_tuning import tuning_sections
from benchmarks.results_variants import variant_sections

from inlay.errors import InlayError

__all__ = ["BEGIN", "END", "PAGE", "PAPER", "RUNS", "TUNING", "sections", "whole", "with_tables"]

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
RUNS = ROOT / "benchmarks" / "results" / "table1"
TUNING = ROOT / "benchmarks" / "results" / "tuning"
PAPER = ROOT / "benchmarks" / "results" / "paper.json"
BEGIN, END = "<!-- result tables: made by benchmarks/results_tables.py -->", "<!-- end of result tables -->"


def main() -> None:
    """Write the tables, or with --check say whether they are up to date."""
    try:
        write_page(__doc__, PAGE, lambda text: with_tables(text, whole(RUNS, TUNING, read_paper(PAPER))))
    except InlayError as error:
        sys.exit(f"Error: {error}")


def with_tables(text: str, parts: Sequence[str]) -> str:
    """Return a page with everything between the marks replaced by sections."""
    return between(text, BEGIN, END, parts)


def whole(folder: Path, tuning: Path, paper: Paper) -> list[str]:
    """Return all sections of the page, those on how settings were chosen last.

    Args:
        folder: Folder of the runs.
        tuning: Folder of the runs that decided settings.
        paper: Figures that the paper prints.

    Raises:
        InlayError: As `sections` does.
    """
    return [*sections(folder, paper), *tuning_sections(read_runs(tuning))]


def sections(folder: Path, paper: Paper) -> list[str]:
    """Return the sections of the runs that are compared; tables of which there is no run are left out.

    Args:
        folder: Folder of the runs.
        paper: Figures that the paper prints.

    Raises:
        InlayError: If a run belongs to no table, or two runs of a row cannot be averaged.
    """
    runs = read_runs(folder)
    _check_known(runs)
    parts = [
        *(part for base in BASES for part in main_sections(runs, paper, base)),
        *reason_sections(runs, paper),
        "## Separate heads",
        separate_section(runs),
        *released_section(runs),
        "## Several steps",
        *step_sections(runs),
        "## Random splits",
        *split_sections(runs),
        "## One thing changed",
        *variant_sections(runs, paper),
        "## Cost",
        cost_section(runs),
    ]
    return [*_with_runs(parts), *missing_section(runs)]


def _with_runs(parts: Sequence[str]) -> list[str]:
    """Leave out tables without runs, and headings that have no table left."""
    found = [part for part in parts if not part.endswith(NO_RUNS)]
    following = [*found[1:], "## "]
    return [
        part for part, after in zip(found, following, strict=True) if not (_is_heading(part) and _is_heading(after))
    ]


def _is_heading(part: str) -> bool:
    return part.startswith("## ")


def _check_known(runs: Sequence[Run]) -> None:
    for run in runs:
        for value, known in (
            (run.dataset, DATASETS),
            (run.base, BASES),
            (run.facts["method"], SYSTEMS | REFERENCES),
        ):
            if value not in known:
                raise InlayError(f"{run.file} says {value!r}, which no table has; use one of: {', '.join(known)}.")


if __name__ == "__main__":
    main()
