"""Runs of `inlay bench table2`: read from their files, paired by class order, and what the paper prints for them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from inlay.bench.table2 import published_orders
from inlay.errors import InlayError

__all__ = [
    "HEADS",
    "HOSTS",
    "ORDERS",
    "PRINTED",
    "STAGES",
    "Head",
    "Printed",
    "Run",
    "by_order",
    "check_known",
    "differences",
    "parted",
    "read_runs",
    "row",
]

Head = Literal["cnn", "nme"]

HEADS: Mapping[Head, str] = {"cnn": "CNN", "nme": "NME"}
ORDERS = ("numpy-1993", "icarl-1993", "podnet-2")
STAGES = (25, 10)
REQUIRED = {
    *("method", "name", "table", "control", "stages", "base_classes", "order", "seed", "dataset", "curve", "average"),
    *("last", "forgetting", "nme_average", "parameters", "parameters_base", "merge", "recipe", "settings", "seconds"),
    *("hardware", "commit", "command", "date"),
}


@dataclass(frozen=True)
class Printed:
    """A row of the paper's table.

    Attributes:
        title: Name of the system.
        plain: Average incremental accuracy in percent by the number of stages.
        amm: The same with AMM; empty if the paper has none.
        tolerance: How far below a figure of ours still repeats it, in points; None where its setting is not known.
        head: By which head it was scored.
    """

    title: str
    plain: Mapping[int, float]
    amm: Mapping[int, float]
    tolerance: float | None
    head: Head = "cnn"


PRINTED: Mapping[str, Printed] = {
    "icarl": Printed("iCaRL", {25: 50.60, 10: 53.78}, {25: 60.59, 10: 62.20}, 2.0, "nme"),
    "podnet": Printed("PODNet", {25: 60.72, 10: 63.19}, {25: 63.45, 10: 64.32}, 1.0),
    "afc": Printed("AFC", {25: 63.89, 10: 64.98}, {25: 65.31, 10: 66.01}, 1.0),
    "necil": Printed("NECIL", {25: 61.01, 10: 61.07}, {25: 61.49, 10: 61.83}, None),
    "dytox+": Printed("DyTox+", {25: 64.01, 10: 69.28}, {25: 65.67, 10: 70.52}, None),
    # By which head is not said; its code gives both, and its authors name the linear one for another host alone.
    "icarl+aanets": Printed("iCaRL+AANets", {25: 56.43, 10: 60.26}, {}, 2.0, "nme"),
    "podnet+aanets": Printed("PODNet+AANets", {25: 62.31, 10: 64.31}, {}, 2.0),
    "der": Printed("DER", {10: 72.81}, {}, 1.5),
    "foster": Printed("FOSTER", {25: 63.83, 10: 67.95}, {}, 1.5),
}
HOSTS = tuple(name for name, printed in PRINTED.items() if printed.amm)


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        file: Name of its file.
        facts: The whole record.
    """

    file: str
    facts: Mapping[str, Any]

    @property
    def order(self) -> str:
        """Name of its class order."""
        return str(self.facts["order"])

    def percent(self, head: Head, score: str = "average") -> float | None:
        """Return a score in percent; None if the head has none."""
        found = self.facts[score if head == "cnn" else f"nme_{score}"]
        return None if found is None else 100 * float(found)

    @property
    def changes(self) -> str:
        """What differs from the recipe of the system, besides what is trained."""
        settings = self.facts["settings"]
        return ", ".join(f"{path}={value}" for path, value in settings.items() if not path.startswith("branch."))


def read_runs(folder: Path) -> list[Run]:
    """Return the finished runs of a folder; a run whose average is still null is not one.

    Raises:
        InlayError: If a file lacks a part of the record.
    """
    runs = [Run(path.name, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]
    for run in runs:
        if missing := sorted(REQUIRED - run.facts.keys()):
            raise InlayError(f"{run.file} has no {missing[0]!r}; write it anew with `inlay bench table2`.")
    return [run for run in runs if run.facts["average"] is not None]


def check_known(runs: Iterable[Run]) -> None:
    """Refuse runs that no table would show; a run with a name is shown by it, whatever it is.

    Raises:
        InlayError: If there is one.
    """
    cuts = {(50, stages) for stages in STAGES} | {(0, 10)}
    for run in runs:
        facts = run.facts
        cut = (facts["base_classes"], facts["stages"])
        if facts["name"] is None and (
            facts["method"] not in PRINTED or facts["dataset"] != "cifar100" or cut not in cuts
        ):
            raise InlayError(f"{run.file} has a place in no table; run it anew with --name, or remove it.")


def row(runs: Iterable[Run], **wanted: object) -> list[Run]:
    """Return the runs of one row: without a name, on CIFAR-100 with 50 base classes unless told otherwise.

    Args:
        runs: All runs.
        **wanted: What parts of the record must be.

    Raises:
        InlayError: If two of them cannot be averaged, because they were not made alike or are the same run twice.
    """
    usual: dict[str, object] = {"name": None, "dataset": "cifar100", "base_classes": 50}
    found = [run for run in runs if all(run.facts[part] == value for part, value in {**usual, **wanted}.items())]
    seen: dict[tuple[str, int], Run] = {}
    for run in found:
        twin = seen.setdefault((run.order, run.facts["seed"]), run)
        if twin is not run:
            raise InlayError(f"{twin.file} and {run.file} are the same run; remove one of them.")
        _check_alike(found[0], run, ("recipe",))
    return found


def _check_alike(first: Run, second: Run, parts: Sequence[str]) -> None:
    """Refuse runs that were made in different settings.

    Args:
        first: A run.
        second: Another.
        parts: What must be the same: "recipe", or parts of it.

    Raises:
        InlayError: If they differ.
    """
    for part in parts:
        one, other = (run.facts["recipe"] if part == "recipe" else run.facts["recipe"][part] for run in (first, second))
        if one != other:
            raise InlayError(
                f"{first.file} and {second.file} disagree in {part} and cannot be compared; run one of them anew or "
                f"give it a name with --name."
            )


def parted(runs: Iterable[Run], method: str) -> tuple[list[Run], list[Run]]:
    """Return the runs of a system in class orders in which it was published, and those in others.

    A printed figure is held against the first alone, as the order moves a figure by more than a point.
    """
    groups: tuple[list[Run], list[Run]] = ([], [])
    for run in runs:
        groups[run.order not in published_orders(method)].append(run)
    return groups


def by_order(runs: Iterable[Run], head: Head) -> dict[str, float]:
    """Return the average accuracy in percent by class order, as the mean over its seeds."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if (value := run.percent(head)) is not None:
            found.setdefault(run.order, []).append(value)
    return {order: fmean(values) for order, values in found.items()}


def differences(first: Sequence[Run], second: Sequence[Run], head: Head) -> dict[str, float]:
    """Return by how many points one row is above another in each class order that both have.

    Raises:
        InlayError: If they differ in more than what is trained.
    """
    if first and second:
        _check_alike(first[0], second[0], sorted(first[0].facts["recipe"].keys() - {"branch"}))
    ours, theirs = by_order(first, head), by_order(second, head)
    return {order: ours[order] - theirs[order] for order in ours if order in theirs}
