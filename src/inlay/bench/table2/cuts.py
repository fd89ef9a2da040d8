"""What the cut of the classes into stages changes in the recipe of a system."""

from collections.abc import Mapping

__all__ = ["cut_settings"]

# Published for equal stages with a memory that all classes share, and for a large base stage with one for each class.
_SHARED_MEMORY = {"memory.per_class": "0", "memory.total": "2000"}
_EQUAL_STAGES: Mapping[str, Mapping[str, str]] = {
    # The first of equal stages is trained as the others are.
    "der": {
        **_SHARED_MEMORY,
        "base.epochs": "170",
        "base.warm_up": repr(10 / 170),
        "base.decay_at": f"{110 / 170!r},{130 / 170!r}",
    },
    "foster": _SHARED_MEMORY,
}
# Beyond so many stages DER, which passes each image through a network for every stage, has a shorter schedule.
_MANY_STAGES = 10
# Five epochs warm up, as published.
_SHORT_DYTOX = {
    "base.epochs": "200",
    "base.warm_up": repr(5 / 200),
    "stage.epochs": "60",
    "stage.warm_up": repr(5 / 60),
}


def cut_settings(method: str, stages: int, base_classes: int) -> dict[str, str]:
    """Return changes of a recipe by dotted path: published for equal stages, and schedules that are shortened.

    Schedules are the published ones where a row takes one H200 about a quarter of an hour at most. DyTox+ has 200
    epochs in its base stage and 60 in each later one, in place of 500; DER has 60 in place of 170 in each of more than
    ten stages. With and without AMM they are the same.

    Args:
        method: Name of the system.
        stages: Number of stages after the base stage; with no base classes, of all stages.
        base_classes: Classes of the base stage; 0 makes all stages equal.
    """
    published = {} if base_classes else _EQUAL_STAGES.get(method, {})
    return {**published, **_shortened(method, stages)}


def _shortened(method: str, stages: int) -> dict[str, str]:
    if method == "dytox+":
        return _SHORT_DYTOX
    return {"stage.epochs": "60"} if method == "der" and stages > _MANY_STAGES else {}
