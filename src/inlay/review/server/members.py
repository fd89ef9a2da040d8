"""Which images belong to which class, as decisions move them."""

from collections.abc import Mapping, Sequence

from inlay.decisions import Decision, Merge, Reject, Split, Undo
from inlay.knowledge import Knowledge

__all__ = ["Members", "members_after", "members_of_stage"]

Members = Mapping[int, tuple[int, ...]]
"""Positions of the images of each class by its id; classes without images of the stage may be missing."""


def members_of_stage(knowledge: Knowledge) -> Members:
    """Return the images of each class as a discovery stage has found them.

    Args:
        knowledge: What the stage itself left behind.
    """
    ids = [entry.id for entry in knowledge.registry.of_stage(knowledge.record.index)]
    images: dict[int, list[int]] = {id: [] for id in ids}
    for position, cluster in enumerate(knowledge.record.clusters):
        images[ids[cluster]].append(position)
    return {id: tuple(positions) for id, positions in images.items()}


def members_after(before: Members, decisions: Sequence[Decision], classes: int) -> Members:
    """Follow decisions, each of which is possible and changes something.

    Args:
        before: Images of each class before the decisions.
        decisions: The decisions, the oldest first.
        classes: Number of classes before the decisions; parts of splits are numbered from there, and a number that a
            split has used is not used again when it is undone.

    Returns:
        Images of the classes after them; those of rejected classes belong to none.
    """
    states = [before]
    for decision in decisions:
        if isinstance(decision, Undo):
            states.pop()
            continue
        now = dict(states[-1])
        if isinstance(decision, Merge):
            sources = [id for id in dict.fromkeys(decision.ids) if id != decision.into]
            # In the order in which `inlay.decisions` gives their features to a later split.
            taken = [now.pop(id, ()) for id in sources]
            now[decision.into] = sum(taken, now.get(decision.into, ()))
        elif isinstance(decision, Split):
            whole, parts = now.pop(decision.id), max(decision.labels) + 1
            for part in range(parts):
                chosen = [image for image, label in zip(whole, decision.labels, strict=True) if label == part]
                now[classes + part] = tuple(chosen)
            classes += parts
        elif isinstance(decision, Reject):
            now.pop(decision.id, None)
        states.append(now)
    return states[-1]
