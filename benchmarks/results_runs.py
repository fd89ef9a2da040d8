"""Runs of `inlay bench table1`: read from their files, put into rows and turned into figures."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.errors import InlayError

__all__ = [
    "FIRST",
    "NOTHING",
    "SCORES",
    "Run",
    "figure",
    "harmonic",
    "mean",
    "read_runs",
    "row",
    "scores",
    "table",
]

NOTHING = "–"
FIRST = "first"
SCORES = {"Old": "old", "New": "new", "All": "all", "Harmonic": "harmonic"}
REQUIRED = {
    *("method", "dataset", "seed", "split", "steps", "base", "base_recipe", "schedule", "metrics", "parameters"),
    *("stored_bytes", "seconds", "hardware", "commit", "command", "date", "base_metrics", "stages"),
}
AGREED = ("base_recipe", "schedule", "preset", "backbone", "settings")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        file: Name of its file.
        label: Name of the variant, or the system where nothing was varied; training for the full length is a variant.
        named: Whether it is a variant.
        dataset: Data set.
        seed: Seed of everything random but the classes.
        split: "first" where the classes come in the order of the data set, else what drew them.
        steps: Number of discovery stages.
        base: Base recipe: "reference" or "ours".
        facts: The whole record.
    """

    file: str
    label: str
    named: bool
    dataset: str
    seed: int
    split: str
    steps: int
    base: str
    facts: Mapping[str, Any]


def read_runs(folder: Path) -> list[Run]:
    """Return the finished runs of a folder; a run whose scores are still null is not one.

    Raises:
        InlayError: If a file lacks a part of the record.
    """
    records = [(path.name, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]
    for file, facts in records:
        if missing := sorted(REQUIRED - facts.keys()):
            raise InlayError(f"{file} has no {missing[0]!r}; write it anew with `inlay bench table1`.")
    return [_run(file, facts) for file, facts in records if facts["metrics"]["all"] is not None]


def _run(file: str, facts: Mapping[str, Any]) -> Run:
    full_length = f"{facts['method']}-full-length" if "--full-length" in facts["command"].split() else None
    name = facts.get("name") or full_length
    return Run(
        file=file,
        label=name or facts["method"],
        named=name is not None,
        **{key: facts[key] for key in ("dataset", "seed", "split", "steps", "base")},
        facts=facts,
    )


def row(runs: Iterable[Run], **wanted: object) -> list[Run]:
    """Return the runs of one row of a table.

    Args:
        runs: All runs.
        **wanted: What attributes of `Run` must be.

    Raises:
        InlayError: If two of them cannot be averaged, because they were not made alike or are the same run twice.
    """
    found = [run for run in runs if all(getattr(run, name) == value for name, value in wanted.items())]
    seen: dict[tuple[int, str], Run] = {}
    for run in found:
        first, twin = found[0], seen.setdefault((run.seed, run.split), run)
        if twin is not run:
            raise InlayError(f"{twin.file} and {run.file} are the same run with the same seed; remove one of them.")
        for key in AGREED:
            if run.facts.get(key) != first.facts.get(key):
                raise InlayError(
                    f"{first.file} and {run.file} disagree in {key} and cannot share a row; run one of them anew or "
                    f"give it a name with --name."
                )
    return found


def scores(runs: Iterable[Run], key: str, kind: str = "metrics") -> list[float | None]:
    """Return one score of each run; None where a run has no such score.

    Args:
        runs: The runs.
        key: Name of the score; "harmonic" is the harmonic mean of old and new.
        kind: Way of scoring: "metrics", "calibrated" or "released".
    """
    found = [run.facts.get(kind) or {} for run in runs]
    if key == "harmonic":
        return [harmonic(metrics.get("old"), metrics.get("new")) for metrics in found]
    return [metrics.get(key) for metrics in found]


def harmonic(old: float | None, new: float | None) -> float | None:
    """Return the harmonic mean of the accuracies on old and new classes."""
    if old is None or new is None:
        return None
    return 2 * old * new / (old + new) if old + new else 0.0


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is missing."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def figure(values: Iterable[float | None]) -> str:
    """Return fractions as percent: mean ± sample standard deviation (how many); a dash if there is none."""
    percents = [100 * value for value in values if value is not None]
    if not percents:
        return NOTHING
    spread = f" ± {statistics.stdev(percents):.1f}" if len(percents) > 1 else ""
    return f"{statistics.fmean(percents):.1f}{spread} ({len(percents)})"


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows with the same columns as a table of Markdown; nothing if there are none."""
    if not rows:
        return ""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([cells[column] for column in columns] for cells in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
