"""One run: base stage, later stages, and the scores after each, written down as they come."""

import dataclasses
import hashlib
import json

from inlay.bench.datasets import benchmark
from inlay.bench.places import Places, first_alone, one_at_a_time
from inlay.bench.table2.plan import Run
from inlay.bench.table2.record import GROWING, add_stage, new_record, sum_up
from inlay.bench.table2.state import read_state, write_state
from inlay.engine.checkpoint import write_json
from inlay.engine.device import find_device
from inlay.engine.progress import Progress, QuietProgress
from inlay.increments.course import Course, Standing, after_stage, next_stage, stage_task
from inlay.increments.increment import Learned, System
from inlay.increments.orders import class_order
from inlay.pipeline import Workshop

__all__ = ["base_name", "measure"]


def measure(run: Run, places: Places, progress: Progress | None = None) -> None:
    """Run one system in one class order; what a stopped run has finished is not done again.

    Args:
        run: The run.
        places: Where to read and write.
        progress: Receiver of news; None is quiet.

    Raises:
        InlayError: If the data is missing, a setting is wrong, or training is stopped or diverges.
    """
    run.check()
    places.make_folders()
    workshop = Workshop(find_device(places.device), progress or QuietProgress())
    system = run.system
    course, images = _read(run, places)
    record = new_record(run, system, places)
    identity = _hash(images, run.order, run.cut, run.seed, record["method"], record["table"], record["recipe"])
    file = places.work / "runs" / f"{run.label}-{identity}.pt"
    standing = None
    if (state := read_state(file, workshop.device)) is not None:
        standing = state["standing"]
        record |= {part: state[part] for part in GROWING}
    while standing is None or standing.index < len(run.cut) - 1:
        if standing is None:
            standing = _base_stage(run, system, course, images, places, workshop)
        else:
            standing = next_stage(system, course, standing, run.seed, workshop)
        add_stage(record, system, course, standing)
        write_state(file, {"standing": standing, **{part: record[part] for part in GROWING}})
        write_json(places.result(run), record)
    sum_up(record)
    write_json(places.result(run), record)


def base_name(run: Run) -> str:
    """Name the base stage of a run; runs start from the same one if they have the same name for it."""
    return json.dumps([run.dataset, *_base_facts(run, run.system)], sort_keys=True)


def _base_facts(run: Run, system: System) -> list[object]:
    """Return what decides the base stage of a run, besides the images."""
    recipe = system.recipe
    classes = class_order(run.order, benchmark(run.dataset).classes)[: run.cut[0]]
    return [classes, run.seed, system.base, dataclasses.asdict(recipe.base), recipe.backbone, recipe.view]


def _read(run: Run, places: Places) -> tuple[Course, str]:
    """Return the course, and a hash of its images."""
    # Image files are decoded once, into a cache that the next process finds.
    with first_alone(places.work / f"{run.dataset}.lock"):
        train, test = benchmark(run.dataset).images(places.data)
    order = class_order(run.order, len(train.class_names))
    return Course(train, test, order, run.cut), _hash(train.fingerprint(), test.fingerprint())


def _base_stage(run: Run, system: System, course: Course, images: str, places: Places, workshop: Workshop) -> Standing:
    """Return what a run knows after its base stage, which is trained only if no other run has done so."""
    identity = _hash(images, *_base_facts(run, system))
    file = places.work / "bases" / f"{run.dataset}-{system.recipe.backbone}-seed{run.seed}-{identity}.pt"
    with one_at_a_time(file.with_suffix(".lock")):
        state = read_state(file, workshop.device)
        if state is None:
            trained = next_stage(system, course, None, run.seed, workshop)
            state = {"classifier": trained.classifier, "seconds": trained.seconds}
            write_state(file, state)
    task = stage_task(system, course, None, run.seed, workshop.device)
    return after_stage(system, course, task, None, Learned(state["classifier"]), state["seconds"])


def _hash(*facts: object) -> str:
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()
