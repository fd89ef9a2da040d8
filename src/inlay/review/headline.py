"""The top of the report: what was learned, in plain words and a few large numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inlay.review.content import Report, StageSection
from inlay.review.wording import BASELINE_NAMES, counted, percent

__all__ = ["Tile", "sentences", "tiles"]


@dataclass(frozen=True)
class Tile:
    """A large number with its label above and a note below."""

    label: str
    value: str
    note: str


def sentences(report: Report) -> list[str]:
    """Say what was learned and how well, after the last stage."""
    told = [_what_was_learned(report)]
    last = report.stages[-1]
    metrics = last.metrics
    if metrics["all"] is None:
        return [*told, "Nothing is scored, because the true classes of the images are not known."]
    split = ""
    if metrics["old"] is not None and metrics["new"] is not None:
        split = f": {percent(metrics['old'])} on the old classes and {percent(metrics['new'])} on the new ones"
    told.append(f"It now names {percent(metrics['all'])} of all test images correctly{split}.")
    return told + _comparison(last)


def tiles(report: Report) -> list[Tile]:
    """The few numbers that a reader should take away."""
    first, last = report.stages[0], report.stages[-1]
    taught, found = _class_counts(report)
    chosen = [Tile("Classes known", f"{taught + found:,}", f"{taught:,} taught, {found:,} discovered")]
    if last.metrics["all"] is not None:
        chosen.append(Tile("All classes", percent(last.metrics["all"]), "of test images named correctly"))
    if last.metrics["new"] is not None:
        chosen.append(Tile("New classes", percent(last.metrics["new"]), "of the last stage, without labels"))
    before, after = first.metrics["groups"].get("base"), last.metrics["groups"].get("base")
    if len(report.stages) > 1 and before is not None and after is not None:
        chosen.append(Tile("Base classes", percent(after), f"{percent(before)} before any discovery"))
    merges = [stage.merge for stage in report.stages if stage.merge is not None]
    if merges:
        start, end = merges[0]["parameters_before"], merges[-1]["parameters_after"]
        chosen.append(Tile("Network growth", f"{end - start:+,}", f"parameters, from {start:,} to {end:,}"))
    return chosen


def _what_was_learned(report: Report) -> str:
    taught, found = _class_counts(report)
    novel_stages = sum(stage.kind == "novel" for stage in report.stages)
    from_labels = f"learned {counted(taught, 'class', 'classes')} from labelled images"
    from_nothing = (
        f"found {counted(found, 'class', 'classes')} in unlabelled images, "
        f"in {counted(novel_stages, 'stage', 'stages')}"
    )
    if not novel_stages:
        return f"The network {from_labels}."
    if not taught:
        return f"The network {from_nothing}."
    return f"The network {from_labels}, then {from_nothing}."


def _comparison(stage: StageSection) -> list[str]:
    """Compare with the better of the two ways of plain clustering."""
    ours = stage.metrics["new_head"]
    rivals: dict[str, float] = {}
    for name in ("kmeans_pixels", "kmeans_features"):
        scores: Mapping[str, object] = (stage.baselines or {}).get(name) or {}  # type: ignore[assignment]
        theirs = scores.get("new_head")
        if isinstance(theirs, float | int):
            rivals[name] = theirs
    if ours is None or not rivals:
        return []
    best = max(rivals, key=lambda name: rivals[name])
    return [
        f"Sorting only the newest images among only the newest classes, it gets {percent(ours)} right; "
        f"{BASELINE_NAMES[best]} gets {percent(rivals[best])}."
    ]


def _class_counts(report: Report) -> tuple[int, int]:
    taught = sum(len(stage.classes) for stage in report.stages if stage.kind == "base")
    return taught, sum(len(stage.classes) for stage in report.stages if stage.kind == "novel")
