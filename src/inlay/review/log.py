"""What was decided about a stage, in words."""

from collections.abc import Sequence

from inlay.registry import Change, ClassRegistry, Event

__all__ = ["decision_log"]


def decision_log(before: ClassRegistry, after: ClassRegistry) -> list[str]:
    """Say what was decided, the oldest first, with the names of that time.

    Args:
        before: The classes as the stage left them.
        after: The classes after the decisions.
    """
    names = list(after.names)
    events = after.history[len(before.history) :]
    for change in (change.reversed() for event in reversed(events) for change in reversed(event.changes)):
        _rename(names, change)
    said: list[str] = []
    standing: list[str] = []
    for event in events:
        if event.what == "undo":
            said.append(f"taken back: {standing.pop()}")
        else:
            standing.append(_said(event, names))
            said.append(standing[-1])
        for change in event.changes:
            _rename(names, change)
    return said


def _rename(names: list[str], change: Change) -> None:
    if change.field == "name":
        names[change.id] = str(change.new)


def _said(event: Event, names: Sequence[str]) -> str:
    first = event.changes[0]
    if event.what == "rename":
        return f"{first.old} renamed to {first.new}"
    if event.what == "merge":
        *sources, into = event.changes
        return f"{_listed([names[change.id] for change in sources])} merged into {names[into.id]}"
    if event.what == "split":
        return f"{names[first.id]} split into {_listed([names[change.id] for change in event.changes[1:]])}"
    return f"{names[first.id]} rejected"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
