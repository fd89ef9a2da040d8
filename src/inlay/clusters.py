"""The images of a discovery stage with the classes they were sorted into: as folders, as CSV, or for Label Studio."""

import csv
import io
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from torch import Tensor

from inlay.data.images import Images
from inlay.decisions import Decision
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from inlay.output_file import write_output
from inlay.review.server.members import members_after, members_of_stage

__all__ = ["SortedImage", "Verdict", "sorted_images", "write_csv", "write_label_studio"]

Verdict = Literal["new", "known", "neither"]

# The names that Label Studio's own template for the classification of images uses.
_CONTROL, _OBJECT = "choice", "image"
# Label Studio serves local files below its document root, which is the root of the file system unless told otherwise.
_LOCAL_FILES = "/data/local-files/?d="


@dataclass(frozen=True)
class SortedImage:
    """An image of a pile, and what became of it.

    Attributes:
        path: Its file; the name it has in an archive or array otherwise.
        class_id: Id of its class; None if it has none, because the class was rejected or the image is neither known
            nor like other new ones.
        class_name: Name of the class at this time; "" if it has none.
        confidence: Probability that the joint head gives the class, 0 to 1; None if it has none.
        stage: The stage whose pile it was in.
        verdict: "new" if it was learned, "known" or "neither" if it was sorted out before.
    """

    path: str
    class_id: int | None
    class_name: str
    confidence: float | None
    stage: int
    verdict: Verdict


def sorted_images(
    before: Knowledge, decisions: Sequence[Decision], now: Knowledge, images: Images
) -> tuple[SortedImage, ...]:
    """Say of each image of a stage which class it has now.

    New images have the class that the stage and the decisions gave them, known ones the class that is most probable.

    Args:
        before: What the stage itself left behind.
        decisions: The decisions about the stage, the oldest first.
        now: What is known now, maybe after later stages.
        images: Images of the right form, those of the stage among them; others are passed over.

    Raises:
        InlayError: If it was no discovery stage, or none of its images is there.
    """
    record = before.record
    if record.kind != "novel":
        raise InlayError(f"Stage {record.index} found no classes by itself; write the number of a discovery stage.")
    classes = _classes_of(before, decisions, now)
    verdicts: dict[str, Verdict] = dict.fromkeys(classes, "new")
    sorted_out = (record.found or {}).get("sorted_out", {})
    verdicts |= dict.fromkeys(sorted_out.get("known", ()), "known") | dict.fromkeys(
        sorted_out.get("neither", ()), "neither"
    )
    places = [place for place, print_ in enumerate(images.fingerprints()) if print_ in verdicts]
    if not places:
        raise InlayError(
            f"None of the images of stage {record.index} is there; write --images with the folder they are in."
        )
    chosen = images.select(places)
    probabilities = now.logits(chosen).softmax(dim=1)
    return tuple(
        _sorted_image(name, classes.get(print_), verdicts[print_], row, now, record.index)
        for name, print_, row in zip(chosen.names, chosen.fingerprints(), probabilities, strict=True)
    )


def write_csv(images: Iterable[SortedImage], path: Path, *, overwrite: bool = False) -> None:
    """Write a table with a row for each image and the attributes of `SortedImage` as columns.

    Args:
        images: The images.
        path: File to write.
        overwrite: Whether a file that is there may be replaced.

    Raises:
        InlayError: If it may not be written, or cannot be.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(field.name for field in fields(SortedImage))
    for image in images:
        writer.writerow(f"{value:.6f}" if isinstance(value, float) else value for value in astuple(image))
    write_output(path, text.getvalue(), overwrite)


def write_label_studio(
    images: Iterable[SortedImage], path: Path, *, version: str = "inlay", overwrite: bool = False
) -> None:
    """Write tasks that Label Studio imports, with the classes as predictions to be looked at.

    Its labelling configuration needs an `Image` named "image" and `Choices` named "choice", as in its template for
    the classification of images, with a choice for each class name.

    Args:
        images: The images; Label Studio reads them as local files.
        path: File to write.
        version: What Label Studio calls the model.
        overwrite: Whether a file that is there may be replaced.

    Raises:
        InlayError: If it may not be written, or cannot be.
    """
    tasks = [_task(image, version) for image in images]
    write_output(path, json.dumps(tasks, indent=1) + "\n", overwrite)


def _classes_of(before: Knowledge, decisions: Sequence[Decision], now: Knowledge) -> dict[str, int | None]:
    """Return the class that each new image has now, by fingerprint; None if it was rejected."""
    members = members_after(members_of_stage(before), decisions, len(before.registry))
    classes: dict[str, int | None] = dict.fromkeys(before.record.fingerprints)
    for id, positions in members.items():
        # Later stages may have merged or rejected it.
        present = now.registry.resolve(id)
        classes |= {before.record.fingerprints[position]: present for position in positions}
    return classes


def _sorted_image(
    name: str, id: int | None, verdict: Verdict, probabilities: Tensor, now: Knowledge, stage: int
) -> SortedImage:
    path = os.path.abspath(name) if os.path.isfile(name) else name
    if verdict == "known":
        id = int(probabilities.argmax())
    if id is None:
        return SortedImage(path, None, "", None, stage, verdict)
    return SortedImage(path, id, now.registry.names[id], float(probabilities[id]), stage, verdict)


def _task(image: SortedImage, version: str) -> dict[str, object]:
    facts = {"stage": image.stage, "verdict": image.verdict, "class_id": image.class_id}
    task: dict[str, object] = {"data": {_OBJECT: _LOCAL_FILES + quote(os.fsencode(image.path.lstrip("/"))), **facts}}
    if image.class_id is not None:
        chosen = {
            "id": "class",
            "from_name": _CONTROL,
            "to_name": _OBJECT,
            "type": "choices",
            "value": {"choices": [image.class_name]},
        }
        task["predictions"] = [{"model_version": version, "score": image.confidence, "result": [chosen]}]
    return task
