"""The structure of results.json, the numbers of a run for other programs to read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NotRequired, TypedDict, get_args

from inlay.errors import InlayError
from inlay.evaluation.matching import MatchedOn

__all__ = [
    "Baselines",
    "FeatureBaseline",
    "JointBaseline",
    "Merge",
    "Metrics",
    "NewHeadBaseline",
    "Results",
    "StageKind",
    "StageResults",
    "validate_results",
]

StageKind = Literal["base", "novel"]


class Metrics(TypedDict):
    """Scores after one stage, as `inlay.evaluation.Scores` defines them; None where undefined."""

    old: float | None
    new: float | None
    all: float | None
    groups: dict[str, float | None]
    new_head: float | None
    old_head: float | None
    nmi: float | None
    ari: float | None
    matched_on: MatchedOn | None
    counts: NotRequired[dict[str, int]]


class Merge(TypedDict):
    """What merging the new branches did: change of the outputs, and number of parameters along the way."""

    max_abs_diff: float
    parameters_before: int
    parameters_hybrid: int
    parameters_after: int


class NewHeadBaseline(TypedDict, total=False):
    """Accuracy on the new classes among the new classes alone."""

    new_head: float | None


class FeatureBaseline(NewHeadBaseline, total=False):
    """As `NewHeadBaseline`; `base` says whose features did better: "own" (the run's) or "plain" (a plain base)."""

    base: str


class JointBaseline(TypedDict, total=False):
    """Accuracy with all classes to choose from."""

    old: float | None
    new: float | None
    all: float | None


class Baselines(TypedDict, total=False):
    """Other ways to do the same stage; a skipped one is None or left out."""

    kmeans_pixels: NewHeadBaseline | None
    kmeans_features: FeatureBaseline | None
    forgetful: JointBaseline | None
    supervised: JointBaseline | None


class StageResults(TypedDict):
    """Numbers of one stage; `classes` names the classes that the stage brought."""

    name: str
    kind: StageKind
    classes: list[str]
    metrics: Metrics
    merge: Merge | None
    baselines: NotRequired[Baselines | None]
    seconds: float


class Results(TypedDict):
    """Content of results.json."""

    command: str
    seed: int
    versions: dict[str, str]
    seconds: float
    stages: list[StageResults]


_FRACTIONS = ("old", "new", "all", "new_head", "old_head", "nmi")
_PARAMETERS = ("parameters_before", "parameters_hybrid", "parameters_after")
_BASELINE_KEYS = {
    "kmeans_pixels": ("new_head",),
    "kmeans_features": ("new_head", "base"),
    "forgetful": ("old", "new", "all"),
    "supervised": ("old", "new", "all"),
}


def validate_results(value: object) -> None:
    """Check that a value read from JSON has the structure of `Results`.

    Args:
        value: what the JSON parser returned.

    Raises:
        InlayError: if anything is missing, unknown, of the wrong type or out of range; the message names it.
    """
    top = _object(value, "results", ("command", "seed", "versions", "seconds", "stages"))
    _string(top["command"], "command")
    if not _is_integer(top["seed"]):
        raise _wrong("seed", "an integer")
    for name, version in _mapping(top["versions"], "versions").items():
        _string(version, f"versions.{name}")
    _seconds(top["seconds"], "seconds")
    stages = top["stages"]
    if not isinstance(stages, list) or not stages:
        raise _wrong("stages", "a list of at least one stage")
    for position, stage in enumerate(stages):
        _check_stage(stage, f"stages[{position}]")


def _check_stage(value: object, where: str) -> None:
    stage = _object(value, where, ("name", "kind", "classes", "metrics", "merge", "seconds"), optional=("baselines",))
    _string(stage["name"], f"{where}.name")
    if stage["kind"] not in get_args(StageKind):
        raise _wrong(f"{where}.kind", '"base" or "novel"')
    classes = stage["classes"]
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise _wrong(f"{where}.classes", "a list of class names")
    _check_metrics(stage["metrics"], f"{where}.metrics")
    if stage["merge"] is not None:
        _check_merge(stage["merge"], f"{where}.merge")
    if stage.get("baselines") is not None:
        _check_baselines(stage["baselines"], f"{where}.baselines")
    _seconds(stage["seconds"], f"{where}.seconds")


def _check_metrics(value: object, where: str) -> None:
    metrics = _object(value, where, (*_FRACTIONS, "ari", "groups", "matched_on"), optional=("counts",))
    for key in _FRACTIONS:
        _fraction(metrics[key], f"{where}.{key}")
    if metrics["ari"] is not None and not _is_number(metrics["ari"], -1.0, 1.0):
        raise _wrong(f"{where}.ari", "a number from -1 to 1, or null")
    for group, accuracy in _mapping(metrics["groups"], f"{where}.groups").items():
        _fraction(accuracy, f"{where}.groups.{group}")
    if metrics["matched_on"] not in (None, *get_args(MatchedOn)):
        raise _wrong(f"{where}.matched_on", '"train", "test" or null')
    for group, count in _mapping(metrics.get("counts", {}), f"{where}.counts").items():
        _count(count, f"{where}.counts.{group}")


def _check_merge(value: object, where: str) -> None:
    merge = _object(value, where, ("max_abs_diff", *_PARAMETERS))
    if not _is_number(merge["max_abs_diff"], 0.0):
        raise _wrong(f"{where}.max_abs_diff", "a number that is not negative")
    for key in _PARAMETERS:
        _count(merge[key], f"{where}.{key}")


def _check_baselines(value: object, where: str) -> None:
    for name, scores in _object(value, where, (), optional=_BASELINE_KEYS).items():
        if scores is None:
            continue
        place = f"{where}.{name}"
        for key, accuracy in _object(scores, place, (), optional=_BASELINE_KEYS[name]).items():
            if key == "base":
                _base(accuracy, f"{place}.{key}")
            else:
                _fraction(accuracy, f"{place}.{key}")


def _object(value: object, where: str, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, object]:
    found = _mapping(value, where)
    missing = [key for key in required if key not in found]
    if missing:
        raise _wrong(where, f"an object with the key {missing[0]!r}")
    unknown = sorted(found.keys() - {*required, *optional})
    if unknown:
        raise _wrong(where, f"an object without the key {unknown[0]!r}")
    return found


def _mapping(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise _wrong(where, "an object")
    return value


def _string(value: object, where: str) -> None:
    if not isinstance(value, str):
        raise _wrong(where, "a string")


def _base(value: object, where: str) -> None:
    if value not in ("own", "plain"):
        raise _wrong(where, '"own" or "plain"')


def _fraction(value: object, where: str) -> None:
    if value is not None and not _is_number(value, 0.0, 1.0):
        raise _wrong(where, "a fraction from 0 to 1, or null")


def _seconds(value: object, where: str) -> None:
    if not _is_number(value, 0.0):
        raise _wrong(where, "a number of seconds")


def _count(value: object, where: str) -> None:
    if not (_is_integer(value) and _is_number(value, 0.0)):
        raise _wrong(where, "a whole number that is not negative")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object, low: float, high: float = float("inf")) -> bool:
    """Whether the value is a finite number in the range; the comparison also refuses NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return low <= value <= high and value != float("inf")


def _wrong(where: str, wanted: str) -> InlayError:
    return InlayError(f"In the results of a run, {where} must be {wanted}; put back the file that inlay wrote.")
