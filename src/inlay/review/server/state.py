"""What the page is told: the classes of a stage as they are now, their images, and the map."""

from collections.abc import Sequence

import torch

from inlay.engine.checkpoint import JsonObject
from inlay.engine.randomness import generator
from inlay.errors import InlayError
from inlay.registry import Change, ClassEntry, Event
from inlay.review.server import stage_view
from inlay.review.server.session import MOST_PARTS, Session

__all__ = ["images_of", "map_of", "state_of"]

_SHOWN = 8
_PAGE = 60
_POINTS = 20_000


def state_of(session: Session) -> JsonObject:
    """Return everything that changes with a decision."""
    with session.lock:
        return _state(session)


def _state(session: Session) -> JsonObject:
    registry = session.after.registry
    old = registry.before(session.stage)
    return {
        "run": session.run.path.name,
        "stage": session.stage,
        "revision": session.revision,
        "images": len(session.images),
        "found": len(session.images.found),
        "can_undo": session.can_undo,
        "most_parts": MOST_PARTS,
        "classes": [_class_of(session, entry) for entry in registry.of_stage(session.stage) if entry.is_active],
        "old": [_named(entry) for entry in old if entry.is_active],
        "log": _log(session),
        "points": _classes_of_points(session),
    }


def map_of(session: Session) -> JsonObject:
    """Return the map of the stage: for each of at most 20,000 images its position in the stage and in the plane."""
    places = _points(session)
    plane = stage_view.plane(session.features[places])
    return {"images": places, "points": [[round(x, 4), round(y, 4)] for x, y in plane.tolist()]}


def images_of(session: Session, id: int, first: int) -> JsonObject:
    """Return a page of the images of a class, the most typical first.

    Raises:
        InlayError: If the class has no images in the stage.
    """
    with session.lock:
        images = _present(session, id)
    if not images:
        raise InlayError(f"Class {id} has no images here; write the id of a class of stage {session.stage}.")
    order = stage_view.typical(session.features[images], len(images))
    chosen = [images[row] for row in order[first : first + _PAGE]]
    return {"images": [_pictured(session, image) for image in chosen], "first": first, "all": len(images)}


def _class_of(session: Session, entry: ClassEntry) -> JsonObject:
    registry, means = session.after.registry, session.after.statistics.mean.cpu()
    others = [other for other in registry.active() if other.id != entry.id]
    images = _present(session, entry.id)
    shown: dict[str, list[int]] = {"typical": [], "doubtful": []}
    if images:
        features = session.features[images]
        with torch.no_grad():
            scores = session.after.head(features.to(session.after.device)).cpu()
        shown["typical"] = stage_view.typical(features, _SHOWN)
        shown["doubtful"] = stage_view.doubtful(scores, entry.id, _SHOWN)
    near = {
        "nearest_old": stage_view.nearest(means, entry.id, [o.id for o in others if o.stage < session.stage]),
        "nearest_new": stage_view.nearest(means, entry.id, [o.id for o in others if o.stage == session.stage]),
    }
    entries = list(registry)
    return {
        **_named(entry),
        "size": entry.size,
        "may_split": session.may_split(entry.id),
        **{key: None if id is None else _named(entries[id]) for key, id in near.items()},
        **{key: [_pictured(session, images[row]) for row in rows] for key, rows in shown.items()},
    }


def _present(session: Session, id: int) -> list[int]:
    """Return the images of a class that are at hand."""
    return [image for image in session.members.get(id, ()) if session.images.name(image)]


def _points(session: Session) -> list[int]:
    found = session.images.found
    if len(found) > _POINTS:
        chosen = torch.randperm(len(found), generator=generator(session.before.seed, "map"))[:_POINTS]
        found = found[chosen.sort().values]
    return found.tolist()


def _classes_of_points(session: Session) -> list[int | None]:
    owner = {image: id for id, images in session.members.items() for image in images}
    return [owner.get(image) for image in _points(session)]


def _pictured(session: Session, image: int) -> JsonObject:
    return {"image": image, "name": session.images.name(image)}


def _named(entry: ClassEntry) -> JsonObject:
    return {"id": entry.id, "name": entry.name}


def _log(session: Session) -> list[str]:
    """Say what was decided since the stage ended, the oldest first, with the names of that time."""
    names = list(session.after.registry.names)
    events = session.after.registry.history[len(session.before.registry.history) :]
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
