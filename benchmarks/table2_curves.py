"""Accuracy after each stage as pictures."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.pictures import draw
from benchmarks.table2_runs import HEADS, HOSTS, PRINTED, STAGES, Head, Run, row

__all__ = ["curve_images", "curve_pictures"]

_CONTROLS = ("plain", "full", "frozen", "imm", "constant", "adapters", "amm")


def curve_pictures(runs: Sequence[Run]) -> dict[str, str]:
    """Return the pictures of all curves by the name of their file."""
    records = {**_published(runs), **{name: found for host in HOSTS for name, found in _fair(runs, host).items()}}
    return {f"{name}.svg": draw(record) for name, record in records.items()}


def curve_images(runs: Sequence[Run], table: str, images: Path) -> list[str]:
    """Return the pictures of a table as Markdown.

    Args:
        runs: Runs; in table B those of one host.
        table: "A" or "B".
        images: Folder of the pictures.
    """
    found = _published(runs) if table == "A" else {k: v for host in HOSTS for k, v in _fair(runs, host).items()}
    return [f"![{record['title']}]({images.name}/{name}.svg)" for name, record in found.items()]


def _published(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    found = {}
    for stages in STAGES:
        systems = []
        for method, printed in PRINTED.items():
            for control, mark in (("plain", ""), ("amm", "+AMM")):
                members = row(runs, table="A", method=method, control=control, stages=stages)
                systems += _curve(f"{printed.title}{mark}, {HEADS[printed.head]}", members, printed.head)
        if systems:
            title = f"Published settings, {stages} stages"
            found[f"table2-published-{stages}"] = {"picture": "curves", "title": title, "systems": systems}
    return found


def _fair(runs: Sequence[Run], host: str) -> dict[str, dict[str, Any]]:
    found, printed = {}, PRINTED[host]
    for stages in STAGES:
        systems = []
        for control in _CONTROLS:
            members = row(runs, table="B", method=host, control=control, stages=stages)
            systems += _curve(control.upper() if control in ("imm", "amm") else control, members, printed.head)
        if systems:
            title = f"{printed.title}, {stages} stages, {HEADS[printed.head]}, mean over class orders"
            name = f"table2-{host.rstrip('+')}-{stages}"
            found[name] = {"picture": "curves", "title": title, "systems": systems}
    return found


def _curve(label: str, runs: Sequence[Run], head: Head) -> list[dict[str, Any]]:
    """Return the mean over runs after each stage; nothing if the head has no scores."""
    curves = [[stage[head] for stage in run.facts["curve"]] for run in runs]
    if not curves or any(value is None for curve in curves for value in curve):
        return []
    return [{"label": label, "accuracies": [fmean(values) for values in zip(*curves, strict=True)]}]
