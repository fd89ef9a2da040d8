"""One class of the registry, what happened to it, and how both are written down."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from inlay.errors import InlayError

__all__ = ["Change", "ClassEntry", "ClassKind", "Event", "EventKind", "Medoid", "check_class_name", "damaged"]

ClassKind = Literal["labelled", "discovered"]
EventKind = Literal["rename", "merge", "split", "reject", "undo"]
ChangedField = Literal["name", "status", "size"]

_LONGEST_NAME = 100
_STATUS = re.compile(r"active|rejected|withdrawn|merged into \d+|split into \d+(, \d+)+", re.ASCII)
_ENTRY_KEYS = {"id", "name", "stage", "size", "kind"}
_LATER_KEYS = {"status", "note", "medoids"}
# Controls, halves of characters, and separators of lines and paragraphs.
_UNWRITABLE = {"Cc", "Cs", "Zl", "Zp"}


@dataclass(frozen=True)
class Medoid:
    """An image that stands for its class.

    Attributes:
        path: where the image was when the class was found.
        pixels: hash of its pixels, by which it is known again wherever it is.
    """

    path: str
    pixels: str


@dataclass(frozen=True)
class ClassEntry:
    """One class of the model.

    Attributes:
        id: index of the class among the outputs of the joint head; it never changes.
        name: text shown to people; unique among the active classes, free to change.
        stage: stage whose images brought the class, 0 for the base stage.
        size: number of training images given to the class, None where unknown.
        kind: "labelled" when the class came with labels, "discovered" when it was found without.
        status: "active", "merged into ID", "split into ID, ID", "rejected", or "withdrawn" for a part of a split that
            was undone; only an active class is ever predicted.
        note: what people wrote about the class.
        medoids: images that stand for the class; may be empty.
    """

    id: int
    name: str
    stage: int
    size: int | None
    kind: ClassKind
    status: str = "active"
    note: str = ""
    medoids: tuple[Medoid, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether the class can be predicted."""
        return self.status == "active"

    @property
    def successors(self) -> tuple[int, ...]:
        """Ids of the classes that it was merged or split into."""
        return tuple(int(number) for number in re.findall(r"\d+", self.status))

    @property
    def is_split(self) -> bool:
        """Whether the class was split into others."""
        return self.status.startswith("split")

    def to_json(self) -> dict[str, object]:
        """Return plain objects."""
        return asdict(self) | {"medoids": [asdict(medoid) for medoid in self.medoids]}

    @classmethod
    def from_json(cls, item: object, position: int) -> ClassEntry:
        """Rebuild the entry at a place of the registry; what older files lack has its default.

        Raises:
            InlayError: if the item is not what `to_json` writes.
        """
        if not isinstance(item, dict) or not _ENTRY_KEYS <= item.keys() <= _ENTRY_KEYS | _LATER_KEYS:
            raise damaged(f"class {position} lacks one of the keys {', '.join(sorted(_ENTRY_KEYS))} or has another")
        if not _is_count(item["id"]) or item["id"] != position:
            raise damaged(f"the id of class {position} is {item['id']!r}")
        if not isinstance(item["name"], str) or item["kind"] not in get_args(ClassKind):
            raise damaged(f"class {position} has a wrong name or kind")
        if not _is_count(item["stage"]) or not _is_size(item["size"]):
            raise damaged(f"class {position} has a wrong stage or size")
        status, note, medoids = item.get("status", "active"), item.get("note", ""), item.get("medoids", [])
        if not _is_status(status) or not isinstance(note, str):
            raise damaged(f"class {position} has a wrong status or note")
        if not isinstance(medoids, list) or not all(_is_medoid(medoid) for medoid in medoids):
            raise damaged(f"class {position} has wrong medoids")
        return cls(**item | {"medoids": tuple(Medoid(**medoid) for medoid in medoids)})


@dataclass(frozen=True)
class Change:
    """One value of one class before and after an event.

    Attributes:
        id: the class.
        field: "name", "status" or "size".
        old: value before.
        new: value after.
    """

    id: int
    field: ChangedField
    old: str | int | None
    new: str | int | None

    def reversed(self) -> Change:
        """Return the change that takes this one back."""
        return Change(self.id, self.field, self.new, self.old)


@dataclass(frozen=True)
class Event:
    """Something that people decided about classes.

    Attributes:
        stage: latest stage at that time.
        what: "rename", "merge", "split", "reject" or "undo".
        when: time of the decision, as the caller gave it; may be empty.
        changes: what became different, in order.
    """

    stage: int
    what: EventKind
    when: str
    changes: tuple[Change, ...]

    def to_json(self) -> dict[str, object]:
        """Return plain objects."""
        return asdict(self) | {"changes": [asdict(change) for change in self.changes]}

    @classmethod
    def from_json(cls, item: object, position: int) -> Event:
        """Rebuild the event at a place of the history.

        Raises:
            InlayError: if the item is not what `to_json` writes.
        """
        if not isinstance(item, dict) or item.keys() != {"stage", "what", "when", "changes"}:
            raise damaged(f"event {position} does not have exactly the keys changes, stage, what, when")
        changes = item["changes"]
        known = item["what"] in get_args(EventKind) and _is_count(item["stage"]) and isinstance(item["when"], str)
        if not known or not isinstance(changes, list) or not all(_is_change(change) for change in changes):
            raise damaged(f"event {position} has wrong values")
        return cls(**item | {"changes": tuple(Change(**change) for change in changes)})


def check_class_name(name: str) -> None:
    """Refuse a name that cannot be shown on one short line.

    Raises:
        InlayError: if the name is empty, longer than 100 characters, or has control characters.
    """
    if not name.strip():
        raise InlayError("A class name cannot be empty; write at least one visible character.")
    if any(unicodedata.category(character) in _UNWRITABLE for character in name):
        raise InlayError(f"The class name {name[:_LONGEST_NAME]!r} has control characters; write plain text.")
    if len(name) > _LONGEST_NAME:
        raise InlayError(
            f"The class name {name[:20]!r}... has {len(name)} characters; write at most {_LONGEST_NAME} characters."
        )


def damaged(reason: str) -> InlayError:
    """Return the error for a registry that inlay did not write."""
    return InlayError(
        f"The class registry was damaged or edited by hand ({reason}); put back the file that inlay wrote."
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_size(value: object) -> bool:
    return value is None or _is_count(value)


def _is_status(value: object) -> bool:
    return isinstance(value, str) and _STATUS.fullmatch(value) is not None


def _is_medoid(item: object) -> bool:
    if not isinstance(item, dict) or item.keys() != {"path", "pixels"}:
        return False
    return all(isinstance(value, str) for value in item.values())


def _is_change(item: object) -> bool:
    if not isinstance(item, dict) or item.keys() != {"id", "field", "old", "new"} or not _is_count(item["id"]):
        return False
    fits = _FITS.get(item["field"]) if isinstance(item["field"], str) else None
    return fits is not None and fits(item["old"]) and fits(item["new"])


_FITS: Mapping[str, Any] = {"name": lambda value: isinstance(value, str), "status": _is_status, "size": _is_size}
