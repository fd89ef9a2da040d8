"""The model that answers, which is always that of the run folder."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

import inlay
from inlay import branches
from inlay.data import ImageSet
from inlay.engine.checkpoint import JsonObject
from inlay.errors import InlayError
from inlay.knowledge import StageRecord
from inlay.learner import Learner
from inlay.manifest import MANIFEST
from inlay.prediction import Prediction
from inlay.serving.refusal import RefusedError
from inlay.serving.uploads import Given, decode_uploads

__all__ = ["ServedModel"]

_State: TypeAlias = tuple[int, int, int] | None


class ServedModel:
    """A run that is asked by several threads, one at a time.

    Every change of a run replaces its manifest, so a look at that file tells whether to load it anew.

    Args:
        run: Folder of the run; it is only read.
        device: "cpu", "cuda" or "auto".
        on_failure: Called with a sentence for the person at the terminal if the run cannot be read again.

    Raises:
        InlayError: If the folder is not a whole run.
    """

    def __init__(self, run: Path, device: str, on_failure: Callable[[str], None]) -> None:
        self._run, self._device, self._on_failure = run, device, on_failure
        self._lock = threading.Lock()
        self._load(_state(run))

    def predict(self, given: Given, top: int, most_seconds: float) -> list[JsonObject]:
        """Say what is on images, as `inlay predict --json` does, with the next best classes under `top`.

        Args:
            given: The images, which go through the network together.
            top: Number of classes to name.
            most_seconds: Time for decoding.

        Raises:
            InlayError: If an image cannot be read.
            RefusedError: If decoding takes too long, or the run cannot be read any more.
        """
        with self._current() as learner:
            form = learner.knowledge.form
            images = given if isinstance(given, ImageSet) else decode_uploads(given, form, most_seconds)
            return [
                {**asdict(ranked[0]), "top": [_of_class(found) for found in ranked]}
                for ranked in learner.rank(images, top)
            ]

    def classes(self) -> JsonObject:
        """List all classes, those that are no longer predicted too.

        Raises:
            RefusedError: If the run cannot be read any more.
        """
        with self._current() as learner:
            return {
                "classes": [
                    {
                        "id": entry.id,
                        "name": entry.name,
                        "stage": entry.stage,
                        "discovered": entry.kind == "discovered",
                        "images": entry.size,
                        "status": entry.status,
                    }
                    for entry in learner.classes
                ]
            }

    def info(self) -> JsonObject:
        """Tell what the model is.

        Raises:
            RefusedError: If the run cannot be read any more.
        """
        with self._current() as learner:
            knowledge = learner.knowledge
            height, width = knowledge.form.size
            return {
                "version": inlay.__version__,
                "parameters": self._parameters,
                "input": {"height": height, "width": width, "channels": knowledge.form.channels},
                "classes": len(learner.classes.active()),
                "stage": knowledge.record.index,
                "stages": [_of_stage(record) for record in learner.stages],
            }

    @contextmanager
    def _current(self) -> Iterator[Learner]:
        with self._lock:
            try:
                state = _state(self._run)
                if state != self._loaded:
                    self._load(state)
            except InlayError as error:
                self._on_failure(f"The run was changed and cannot be read: {error}")
                raise RefusedError(
                    503, "The model was changed and cannot be read at the moment; ask again later."
                ) from error
            yield self._learner

    def _load(self, state: _State) -> None:
        self._learner = Learner.load(self._run, device=self._device)
        knowledge = self._learner.knowledge
        self._parameters = branches.folded_parameters(knowledge.network, knowledge.form.example().to(knowledge.device))
        self._loaded = state


def _state(run: Path) -> _State:
    try:
        found = os.stat(run / MANIFEST)
    except OSError:  # loading says why
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _of_stage(record: StageRecord) -> JsonObject:
    return {
        "stage": record.index,
        "kind": record.kind,
        "classes": len(record.class_names),
        "images": record.images,
    }


def _of_class(found: Prediction) -> JsonObject:
    return {key: value for key, value in asdict(found).items() if key != "source"}
