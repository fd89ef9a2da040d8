"""Whether the classes and the history of a registry that was read are what steps of it lead to."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from inlay.registry_entries import Change, ClassEntry, Event, damaged

__all__ = ["changed", "check_entries", "check_history"]


def changed(entries: Sequence[ClassEntry], changes: Iterable[Change]) -> list[ClassEntry]:
    """Return the classes after some changes."""
    result = list(entries)
    for change in changes:
        value: dict[str, Any] = {change.field: change.new}
        result[change.id] = replace(result[change.id], **value)
    return result


def check_entries(entries: Sequence[ClassEntry]) -> None:
    """Refuse classes that no sequence of steps leads to.

    Raises:
        InlayError: if stages run backwards, names are empty or not unique, or classes lead to none.
    """
    parts = {id for entry in entries if entry.is_split for id in entry.successors}
    latest, taken = 0, set[str]()
    for entry in entries:
        # A split may bring parts of an earlier stage.
        if entry.id not in parts and entry.status != "withdrawn":
            if entry.stage < latest:
                raise damaged(f"class {entry.id} belongs to an earlier stage than the class before it")
            latest = entry.stage
        if not entry.name.strip() or (entry.is_active and entry.name in taken):
            raise damaged(f"class {entry.id} has an empty name or the name of another class")
        if entry.is_active:
            taken.add(entry.name)
        if any(id >= len(entries) for id in entry.successors):
            raise damaged(f"class {entry.id} is {entry.status}, which is not there")
    for entry in entries:
        _check_end(entries, entry)


def check_history(entries: Sequence[ClassEntry], history: Sequence[Event]) -> None:
    """Refuse a history that does not lead to the classes.

    Raises:
        InlayError: if an event undoes nothing, or its values are not those that came after it.
    """
    standing = 0
    for position, event in enumerate(history):
        standing += -1 if event.what == "undo" else 1
        if standing < 0:
            raise damaged(f"event {position} undoes nothing")
    for position, event in reversed(list(enumerate(history))):
        back = [change.reversed() for change in reversed(event.changes)]
        if any(change.id >= len(entries) for change in back):
            raise damaged(f"event {position} changed a class that is not there")
        if any(getattr(entries[change.id], change.field) != change.old for change in back):
            raise damaged(f"event {position} does not lead to what came after it")
        entries = changed(entries, back)


def _check_end(entries: Sequence[ClassEntry], entry: ClassEntry) -> None:
    first = entry.id
    for _ in entries:
        if entry.is_split or not entry.successors:
            return
        entry = entries[entry.successors[0]]
    raise damaged(f"class {first} is merged without end")
