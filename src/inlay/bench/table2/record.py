"""The file of results of a run of Table 2."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inlay import branches
from inlay.backbones.task_tokens import TaskTokenNetwork
from inlay.bench import records
from inlay.bench.places import Places
from inlay.bench.table2.plan import Run
from inlay.increments.course import Course, Standing
from inlay.increments.increment import System
from inlay.increments.scores import StageScores, score_stage, summarise

__all__ = ["GROWING", "add_stage", "finished_record", "new_record", "sum_up"]

GROWING = ("curve", "parameters", "parameters_base", "memory", "merge", "seconds")
"""Parts that grow with every stage."""


def new_record(run: Run, system: System, places: Places) -> dict[str, Any]:
    """Return the record of a run of which nothing is known yet but how it is made; scores are fractions."""
    named = ("method", "name", "table", "control", "stages", "base_classes", "order", "seed", "dataset")
    return {
        **{part: getattr(run, part) for part in named},
        "curve": [],
        **dict.fromkeys(("average", "last", "forgetting", "nme_average", "nme_last")),
        **dict.fromkeys(("parameters", "parameters_base", "memory", "merge")),
        "recipe": dataclasses.asdict(system.recipe),
        "settings": run.settings,
        "seconds": 0.0,
        **records.origin_of(run, places),
    }


def add_stage(record: dict[str, Any], system: System, course: Course, standing: Standing) -> None:
    """Write down what is known after a stage.

    Args:
        record: The record, to which the stage is added.
        system: How it was learned.
        course: The images.
        standing: What is known.
    """
    entry = {**dataclasses.asdict(score_stage(course, standing)), "seconds": standing.seconds}
    if standing.scored is not standing.classifier:
        carried = dataclasses.replace(standing, scored=standing.classifier)
        entry["carried"] = score_stage(course, carried).cnn
    record["curve"].append(entry)
    record["parameters"] = _network_parameters(system, course, standing)
    if standing.index == 0:
        record["parameters_base"] = record["parameters"]
    record["memory"] = len(standing.memory.rows)
    if standing.merge_difference is not None:
        record["merge"] = max(standing.merge_difference, record["merge"] or 0.0)
    record["seconds"] += standing.seconds


def _network_parameters(system: System, course: Course, standing: Standing) -> int:
    """Count the parameters of the network that is scored, head and task tokens aside; as folded, if stages fold it."""
    network = standing.scored.network
    tokens = branches.count_parameters(network.tokens) if isinstance(network, TaskTokenNetwork) else 0
    if system.recipe.branch.gate == "full" and not system.takes_branches:
        return branches.count_parameters(network) - tokens
    example = course.form.example().to(next(network.parameters()).device)
    return branches.folded_parameters(network, example) - tokens


def sum_up(record: dict[str, Any]) -> None:
    """Write down what is said of all stages together, which makes the record a finished one."""
    curve = [StageScores(entry["cnn"], entry["nme"], tuple(entry["groups"])) for entry in record["curve"]]
    scores, nearest = summarise(curve), summarise(curve, "nme")
    assert scores is not None
    record.update(dataclasses.asdict(scores))
    if nearest is not None:
        record.update(nme_average=nearest.average, nme_last=nearest.last)


def finished_record(run: Run, file: Path) -> dict[str, Any] | None:
    """Return the record of a run that was finished earlier, or None.

    Args:
        run: The run.
        file: Its file of results.

    Raises:
        InlayError: If the file holds the results of another run, or is damaged.
    """
    return records.finished_record(run, file, _is_finished)


def _is_finished(record: Mapping[str, Any]) -> bool:
    return record["average"] is not None
