"""What the page is told: the classes of a stage as they are now, their images, and the map."""

from inlay.engine.checkpoint import JsonObject
from inlay.errors import InlayError
from inlay.registry import ClassEntry
from inlay.review.cards import ClassCard, class_cards, classes_of_points, map_places, plane_of
from inlay.review.log import decision_log
from inlay.review.server import stage_view
from inlay.review.server.session import MOST_PARTS, Session

__all__ = ["images_of", "map_of", "state_of"]

_PAGE = 60


def state_of(session: Session) -> JsonObject:
    """Return everything that changes with a decision."""
    with session.lock:
        return _state(session)


def _state(session: Session) -> JsonObject:
    registry = session.after.registry
    return {
        "run": session.run.path.name,
        "stage": session.stage,
        "revision": session.revision,
        "images": len(session.images),
        "found": len(session.images.found),
        "can_undo": session.can_undo,
        "most_parts": MOST_PARTS,
        "classes": [_shown(session, card) for card in class_cards(session)],
        "old": [_named(entry) for entry in registry.before(session.stage) if entry.is_active],
        "log": decision_log(session.before.registry, registry),
        "points": classes_of_points(session),
    }


def map_of(session: Session) -> JsonObject:
    """Return the map of the stage: for each of at most 20,000 images its position in the stage and in the plane."""
    return {
        "images": map_places(session),
        "points": [[round(x, 4), round(y, 4)] for x, y in plane_of(session).tolist()],
    }


def images_of(session: Session, id: int, first: int) -> JsonObject:
    """Return a page of the images of a class, the most typical first.

    Raises:
        InlayError: If the class has no images in the stage.
    """
    with session.lock:
        images = session.present(id)
    if not images:
        raise InlayError(f"Class {id} has no images here; write the id of a class of stage {session.stage}.")
    order = stage_view.typical(session.features[images], len(images))
    chosen = [images[row] for row in order[first : first + _PAGE]]
    return {"images": [_pictured(session, image) for image in chosen], "first": first, "all": len(images)}


def _shown(session: Session, card: ClassCard) -> JsonObject:
    near = {"nearest_old": card.nearest_old, "nearest_new": card.nearest_new}
    return {
        **_named(card.entry),
        "size": card.entry.size,
        "missing": card.missing,
        "may_split": card.may_split,
        **{key: None if entry is None else _named(entry) for key, entry in near.items()},
        "typical": [_pictured(session, image) for image in card.typical],
        "doubtful": [_pictured(session, image) for image in card.doubtful],
    }


def _pictured(session: Session, image: int) -> JsonObject:
    return {"image": image, "name": session.images.name(image)}


def _named(entry: ClassEntry) -> JsonObject:
    return {"id": entry.id, "name": entry.name}
