"""The numbers of a run as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.table import Table
from rich.text import Text

from inlay.review.results import Results
from inlay.review.wording import BASELINE_NAMES, NOTHING, counted, duration, percent

__all__ = ["stage_table"]

_COLUMNS = {"old": "Old", "new": "New", "all": "All", "new_head": "New\nhead", "old_head": "Old\nhead"}


def stage_table(results: Results) -> Table:
    """Accuracy after each stage, with the baselines of the stage below it.

    Args:
        results: content of results.json; see `validate_results` for what is not known to be sound.

    Returns:
        One row per stage and one per baseline that was run.
    """
    table = Table(title="Accuracy after each stage", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Stage")
    for heading in (*_COLUMNS.values(), "Time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stage in results["stages"]:
        # Text, because names may hold square brackets, which rich reads as markup in plain strings.
        name = Text(f"{stage['name']} ({counted(len(stage['classes']), 'class', 'classes')})", style="bold")
        if stage["metrics"]["matched_on"] == "test":
            # Such scores flatter and may stand beside no others.
            table.add_row(name.append(" matched on test, not shown"), *[NOTHING] * len(_COLUMNS), NOTHING)
            continue
        table.add_row(name, *_cells(stage["metrics"], NOTHING), duration(stage["seconds"]))
        baselines: Mapping[str, object] = stage.get("baselines") or {}
        for key, label in BASELINE_NAMES.items():
            scores = baselines.get(key)
            if isinstance(scores, Mapping):
                table.add_row(f"  {label}", *_cells(scores, ""), "", style="dim")
        table.add_section()
    return table


def _cells(scores: Mapping[str, object], missing: str) -> list[str]:
    found = (scores.get(key) for key in _COLUMNS)
    return [percent(value) if isinstance(value, float | int) else missing for value in found]
