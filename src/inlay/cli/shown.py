"""What the commands print."""

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Table

from inlay import branches
from inlay.engine.checkpoint import writing
from inlay.engine.world import World
from inlay.errors import InlayError
from inlay.evaluation import Scores
from inlay.knowledge import Knowledge, StageRecord
from inlay.learner import Learner
from inlay.medoids import MEDOIDS
from inlay.output_file import check_output
from inlay.prediction import Prediction
from inlay.rehearsal import Rehearsal
from inlay.review.wording import counted

__all__ = [
    "console",
    "csv_rows",
    "errors",
    "register",
    "show_knowledge",
    "show_prediction",
    "show_rehearsal",
    "show_report",
    "show_rollback",
    "show_scores",
    "show_stage",
]

_COLUMNS = ("source", "id", "name", "probability", "origin")

# Names of classes and folders are shown as they are, square brackets and colons included.
console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def show_stage(learner: Learner, record: StageRecord) -> None:
    """Print what a stage has learned."""
    found = record.found or {}
    if "pile" in found:
        console.print(
            f"Of {found['pile']:,} images {found['known']:,} are of known classes, {found['new']:,} are new, and "
            f"{found['neither']:,} are neither."
        )
    console.print(
        f"Stage {record.index}: {counted(len(record.class_names), 'class', 'classes')} from "
        f"{counted(record.images, 'image', 'images')} in {record.seconds:.0f} s; {_known(learner)} in all."
    )
    if record.merge is not None:
        console.print(
            f"Merged: outputs changed by at most {record.merge['max_abs_diff']:.1e}; "
            f"{record.merge['parameters_after']:,} parameters before and after."
        )


def show_report(learner: Learner, record: StageRecord, images: str) -> None:
    """Write the report of a finished stage and print where it is, or why there is none; the stage counts all the same.

    Args:
        learner: The learner after the stage.
        record: The stage.
        images: What its images were read from.
    """
    try:
        console.print(f"Report: {learner.report(stage=record.index, images=images)}")
    except InlayError as error:
        if World.current().is_main:
            errors.print(f"The report of the stage was not written. {error}")


def show_rehearsal(rehearsal: Rehearsal) -> None:
    """Print what a stage would need."""
    console.print(rehearsal.table(), soft_wrap=False)
    console.print("Nothing was written; repeat the command without --dry-run to learn.")


def show_scores(scores: Scores, as_json: bool) -> None:
    """Print the scores of a run, one per line or as JSON."""
    if as_json:
        print(json.dumps(scores.to_json(), indent=1))
        return
    for name, value in scores.to_json().items():
        if value is not None:
            console.print(f"{name:<11}{_as_text(value)}")


def show_knowledge(learner: Learner) -> None:
    """Print the classes of a run, its network, and what it stores."""
    knowledge = learner.knowledge
    table = Table(box=None, pad_edge=False)
    retired = learner.classes.retired()
    for heading in ("id", "class", "stage", "kind", "images", *(["status"] if retired else [])):
        justify: JustifyMethod = "right" if heading in ("id", "stage", "images") else "left"
        table.add_column(heading, justify=justify, overflow="fold")
    for entry in learner.classes:
        status = [entry.status] if retired else []
        table.add_row(str(entry.id), entry.name, str(entry.stage), entry.kind, str(entry.size), *status)
    console.print(table, soft_wrap=False)
    height, width = knowledge.form.size
    parameters = branches.folded_parameters(knowledge.network, knowledge.form.example().to(knowledge.device))
    console.print(
        f"Network {knowledge.backbone or 'of your own'}: {parameters:,} parameters without the head; images "
        f"{width}×{height}, {knowledge.form.channels} channel(s); method {knowledge.settings.method}, seed "
        f"{knowledge.seed}."
    )
    for line in _receipt(knowledge, learner.stages):
        console.print(line)
    if learner.kept_beside is not None:
        place, kept = learner.kept_beside
        console.print(
            f"Kept beside the run folder, in {place}: {len(kept):,} whole images of "
            f"{kept.class_count:,} classes, as --exemplars asked; delete that folder to be rid of them."
        )


def register(learner: Learner) -> dict[str, Any]:
    """Return the classes of a run and all decisions about them, and of each stage its images and its time."""
    known = learner.knowledge.registry
    names = ("index", "kind", "images", "seconds", "source")
    return {
        # The prototype is a row of the class means among the tensors of the run folder.
        "classes": [{**entry.to_json(), "prototype": f"statistics.mean[{entry.id}]"} for entry in known],
        "history": [event.to_json() for event in known.history],
        "stages": [{name: getattr(stage, name) for name in names} for stage in learner.stages],
    }


def show_prediction(found: Prediction, as_json: bool) -> None:
    """Print what was said of one image as one line, at once."""
    if as_json:
        line = json.dumps(asdict(found))
    else:
        line = f"{found.source}\t{found.name}\t{found.probability:.3f}\t{_origin(found)}"
    print(line, flush=True)


@contextmanager
def csv_rows(path: Path) -> Iterator[Callable[[Prediction], None]]:
    """Write predictions as the rows of a CSV file, which appears whole when the context ends.

    Args:
        path: File to write, or of such rows to replace.

    Raises:
        InlayError: If it cannot be written, or is there and holds something else.
    """
    _check_rows(path)
    unfinished = path.with_name(f".{path.name}.unfinished")
    with writing(path):
        unfinished.unlink(missing_ok=True)
        file = open(unfinished, "x", newline="", encoding="utf-8")  # noqa: SIM115 - closed below, on each way out
    writer = csv.writer(file)

    def write(*values: object) -> None:
        with writing(path):
            writer.writerow(values)

    try:
        write(*_COLUMNS)
        yield lambda found: write(found.source, found.id, found.name, f"{found.probability:.6f}", _origin(found))
        with writing(path):
            file.close()
            os.replace(unfinished, path)
    finally:
        file.close()
        unfinished.unlink(missing_ok=True)


def _check_rows(path: Path) -> None:
    """Refuse to replace anything but predictions."""
    check_output(path, overwrite=True)
    if not path.is_file():
        return
    with writing(path), open(path, "rb") as file:
        first = file.readline(1000).decode("utf-8", "replace").strip()
    if first not in ("", ",".join(_COLUMNS)):
        raise InlayError(f"{path} is there already and holds no predictions; choose another name.")


def show_rollback(learner: Learner, dropped: Sequence[StageRecord], run: Path) -> None:
    """Print what a rollback has dropped."""
    if not dropped:
        console.print(f"Stage {learner.stages[-1].index} is the latest one already; nothing was changed.")
        return
    for record in dropped:
        names = ", ".join(record.class_names)
        classes = counted(len(record.class_names), "class", "classes")
        console.print(f"Dropped stage {record.index}: {classes} ({names}).")
    are = "is" if len(learner.classes.active()) == 1 else "are"
    console.print(f"{_known(learner)} {are} left; the run as it was is kept in {run / 'dropped'}.")
    place = run.resolve()
    for record in dropped:
        report = place.with_name(f"{place.name}.stage-{record.index}.html")
        if report.exists():
            console.print(f"{report.name} shows a stage that was dropped; delete it, or keep it for your records.")


def _receipt(knowledge: Knowledge, stages: Sequence[StageRecord]) -> Iterator[str]:
    """Say what is stored of classes and images, kind by kind."""
    classes = len(knowledge.registry)
    parts = {f"{name} of the features": tensor.nbytes for name, tensor in knowledge.statistics.tensors().items()}
    parts["weights of the head"] = sum(tensor.nbytes for tensor in knowledge.head.state_dict().values())
    if knowledge.densities is not None:
        parts["densities"] = sum(tensor.nbytes for tensor in knowledge.densities.buffers())
    if knowledge.base_head is not None:
        parts["weights of the base stage's head"] = sum(tensor.nbytes for tensor in knowledge.base_head.parameters())
    parts["text of the register"] = len(json.dumps(knowledge.registry.to_json()))
    total = f"{round(sum(parts.values()) / classes):,} bytes"
    yield f"Stored per class: {total}, with {knowledge.statistics.kind} statistics of its features; no images."
    yield "In bytes per class: " + ", ".join(f"{what} {round(size / classes):,}" for what, size in parts.items()) + "."
    taught = sum(len(record.fingerprints) for record in stages if record.kind == "labelled")
    seen = sum(len(record.fingerprints) + len(_sorted_out(record)) for record in stages) - taught
    yield f"Stored per unlabelled image, {seen:,} in all: its class and a fingerprint of 8 bytes; no pixels."
    if taught:
        yield f"Stored per labelled image of later stages, {taught:,} in all: the same."
    if knowledge.reference is not None:
        kept_out = f"{len(knowledge.reference):,} images that were kept out of training"
        yield f"Stored of {kept_out}: class and features; no pixels."
    yield f"Stored of at most {MEDOIDS} images per class: where they were, and a fingerprint of 8 bytes; no pixels."


def _known(learner: Learner) -> str:
    """Count the classes that can be predicted, not those that people have merged, split or rejected."""
    return counted(len(learner.classes.active()), "class", "classes")


def _sorted_out(record: StageRecord) -> list[str]:
    return [print_ for prints in (record.found or {}).get("sorted_out", {}).values() for print_ in prints]


def _origin(found: Prediction) -> str:
    return "discovered" if found.discovered else "labelled"


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_as_text(part)}" for key, part in value.items() if part is not None)
    return f"{value:.4f}" if isinstance(value, float) else str(value)
