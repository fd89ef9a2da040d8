"""What people decide about discovered classes, and how a model follows: without images, without training.

A decision can only be undone where the knowledge before it is at hand. So whoever takes decisions keeps two things:
the knowledge that the stage itself left behind, and the list of all decisions since, to which `Undo` is appended like
any other. `replay` of the list on that knowledge is the model as decided.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from inlay.densities import with_densities
from inlay.discovery import repair
from inlay.discovery.statistics import ClassStatistics
from inlay.engine.randomness import generator
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from inlay.registry import ClassRegistry

__all__ = [
    "Decision",
    "FeaturesOfClass",
    "Merge",
    "Reject",
    "Rename",
    "Split",
    "Undo",
    "apply",
    "from_json",
    "replay",
    "to_json",
]

FeaturesOfClass = Callable[[int], Tensor]
"""Gives the features of the images of a class, [N, D], always in the same order."""

# A person waits for the fit: fewer samples of large heads, and no iterations after which hardly a prediction changes.
_MULTIPLICATIONS = 2**30
_ITERATIONS = 60


@dataclass(frozen=True)
class Rename:
    """Another name for a class; no weight changes.

    Attributes:
        id: The class.
        name: Its new name.
        when: Time of the decision, in any form.
    """

    id: int
    name: str
    when: str = ""


@dataclass(frozen=True)
class Merge:
    """Classes that are one.

    Attributes:
        ids: Discovered classes that end.
        into: The class that takes their images over.
        when: Time of the decision, in any form.
    """

    ids: tuple[int, ...]
    into: int
    when: str = ""


@dataclass(frozen=True)
class Split:
    """A class that is several.

    Attributes:
        id: Discovered class that ends.
        labels: The part that each of its images belongs to, counted from 0, in the order of `FeaturesOfClass`.
        names: Names of the parts; empty numbers them.
        when: Time of the decision, in any form.
    """

    id: int
    labels: tuple[int, ...]
    names: tuple[str, ...] = ()
    when: str = ""


@dataclass(frozen=True)
class Reject:
    """A class that stands for nothing.

    Attributes:
        id: Discovered class that ends.
        when: Time of the decision, in any form.
    """

    id: int
    when: str = ""


@dataclass(frozen=True)
class Undo:
    """The latest decision that still stands is taken back.

    Attributes:
        when: Time of the decision, in any form.
    """

    when: str = ""


Decision = Rename | Merge | Split | Reject | Undo


@dataclass(frozen=True)
class _Step:
    """A decision that stands, and the ids of the classes it brought."""

    decision: Rename | Merge | Split | Reject
    added: tuple[int, ...] = ()


def apply(knowledge: Knowledge, decision: Decision, features_of_class: FeaturesOfClass | None = None) -> Knowledge:
    """Follow one decision; the same as `replay` of a list of one, so `Undo` has nothing to take back here."""
    return replay(knowledge, [decision], features_of_class)


def replay(
    knowledge: Knowledge, decisions: Sequence[Decision], features_of_class: FeaturesOfClass | None = None
) -> Knowledge:
    """Follow decisions in order: register them, and repair statistics and head once for all.

    If decisions other than names stand, the joint head is fitted anew on features drawn from the statistics of all
    active classes. The outcome is a function of the arguments, and the same as that of one decision after another.

    Args:
        knowledge: What is known before the decisions; it is not changed.
        decisions: The decisions, the oldest first; each `Undo` takes back one before it.
        features_of_class: Features, by the network of the knowledge, of the images of a class of the knowledge. It is
            asked only for splits that stand.

    Raises:
        InlayError: If a decision is not possible, or a split has no features or not one label for each image.
    """
    registry = ClassRegistry.from_json(knowledge.registry.to_json())
    steps = _registered(registry, decisions)
    statistics, members = knowledge.statistics, _Members(features_of_class)
    for step in steps:
        statistics = _followed(statistics, step, members)
    statistics = repair.padded(statistics, len(registry))
    if all(isinstance(step.decision, Rename) for step in steps):
        if len(registry) == len(knowledge.registry):
            return replace(knowledge, registry=registry)
        if isinstance(knowledge.head, nn.Linear):
            head = repair.closed_head(knowledge.head, (), len(registry))
            return with_densities(replace(knowledge, registry=registry, statistics=statistics, head=head))
    head = _refitted(knowledge, registry, statistics)
    return with_densities(replace(knowledge, registry=registry, statistics=statistics, head=head))


def to_json(decision: Decision) -> dict[str, object]:
    """Return a decision as plain objects: its name under "decision", and its attributes."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(decision).items()}
    return {"decision": type(decision).__name__.lower(), **values}


def from_json(data: object) -> Decision:
    """Rebuild a decision from what `to_json` returned; attributes with a default may be left out.

    Raises:
        InlayError: If the data is anything else.
    """
    named = data.get("decision") if isinstance(data, dict) else None
    kind = _KINDS.get(named) if isinstance(named, str) else None
    if not isinstance(data, dict) or kind is None:
        raise InlayError(f"A decision has a wrong name; write under 'decision' one of {', '.join(_KINDS)}.")
    values = {name: value for name, value in data.items() if name != "decision"}
    allowed = {field.name for field in fields(kind)}
    needed = allowed - {"names", "when"}
    if not needed <= values.keys() <= allowed:
        raise InlayError(f"The decision {named!r} has wrong keys; write {', '.join(sorted(allowed))}.")
    for name, value in values.items():
        fits, wanted = _FORMS[name]
        if not fits(value):
            raise InlayError(f"The decision {named!r} has a wrong {name!r}; write {wanted}.")
    decision: Decision = kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    )
    return decision


class _Members:
    """The features of the images of each class, as decisions move them between classes."""

    def __init__(self, of_class: FeaturesOfClass | None) -> None:
        self._of_class = of_class
        self._moved: dict[int, Callable[[], Tensor]] = {}

    def of(self, id: int) -> Tensor:
        """Return the features of the images of a class, [N, D]."""
        return self._source(id)()

    def merge(self, sources: Sequence[int], into: int) -> None:
        """Append the images of some classes to those of another."""
        parts = [self._source(id) for id in (into, *sources)]
        self._moved[into] = lambda: torch.cat([part() for part in parts])

    def split(self, id: int, labels: Tensor, added: Sequence[int]) -> None:
        """Share the images of a class out among new ones."""
        whole = self._source(id)
        for part, new in enumerate(added):
            self._moved[new] = partial(_rows, whole, (labels == part).nonzero().flatten())

    def _source(self, id: int) -> Callable[[], Tensor]:
        return self._moved.get(id) or (lambda: self._asked(id))

    def _asked(self, id: int) -> Tensor:
        if self._of_class is None:
            raise InlayError(f"The split of class {id} needs its images; give those of the stage that found it.")
        return self._of_class(id)


def _rows(whole: Callable[[], Tensor], rows: Tensor) -> Tensor:
    features = whole()
    return features[rows.to(features.device)]


def _registered(registry: ClassRegistry, decisions: Sequence[Decision]) -> list[_Step]:
    """Enter decisions in the registry and return those that stand in the end."""
    standing: list[_Step] = []
    for decision in decisions:
        if isinstance(decision, Undo):
            if not standing:
                raise InlayError("There is no decision to undo since the stage ended; roll the run back instead.")
            standing.pop()
            registry.undo(when=decision.when)
        else:
            events = len(registry.history)
            step = _Step(decision, _entered(registry, decision))
            # A name that a class has already is no event, so there is none to undo.
            if len(registry.history) > events:
                standing.append(step)
    return standing


def _entered(registry: ClassRegistry, decision: Rename | Merge | Split | Reject) -> tuple[int, ...]:
    """Enter a decision in the registry and return the ids of the classes it brought."""
    if isinstance(decision, Split):
        sizes = _sizes_of_parts(decision)
        return registry.split(decision.id, decision.names or len(sizes), sizes=sizes, when=decision.when)
    if isinstance(decision, Rename):
        registry.rename(decision.id, decision.name, when=decision.when)
    elif isinstance(decision, Merge):
        registry.merge(decision.ids, decision.into, when=decision.when)
    else:
        registry.reject(decision.id, when=decision.when)
    return ()


def _sizes_of_parts(decision: Split) -> list[int]:
    counts = Counter(decision.labels)
    parts = len(counts)
    if parts < 2 or set(counts) != set(range(parts)) or max(counts.values()) < 2:
        raise InlayError(
            f"The split of class {decision.id} needs two parts or more, none of them empty and one of two images; "
            f"write the part of each image, from 0."
        )
    if decision.names and len(decision.names) != parts:
        raise InlayError(f"The split of class {decision.id} has {parts} parts; write a name for each.")
    return [counts[part] for part in range(parts)]


def _followed(statistics: ClassStatistics, step: _Step, members: _Members) -> ClassStatistics:
    """Return the statistics after a decision, and move the images of its classes."""
    decision = step.decision
    if isinstance(decision, Reject):
        return repair.without(statistics, [decision.id])
    if isinstance(decision, Merge):
        sources = [id for id in dict.fromkeys(decision.ids) if id != decision.into]
        members.merge(sources, decision.into)
        return repair.merged(statistics, sources, decision.into)
    if isinstance(decision, Split):
        features, labels = members.of(decision.id), torch.tensor(decision.labels)
        if len(features) != len(labels):
            raise InlayError(
                f"The split of class {decision.id} is of {len(labels)} images, but {len(features)} are given; write "
                f"the part of each image."
            )
        members.split(decision.id, labels, step.added)
        # A split that was undone has left ids behind.
        return repair.split(repair.padded(statistics, step.added[0]), decision.id, features, labels)
    return statistics


def _refitted(knowledge: Knowledge, registry: ClassRegistry, statistics: ClassStatistics) -> nn.Linear:
    settings, size = knowledge.settings.classifier, statistics.mean.shape[1]
    active = len(registry.active())
    # Two of each class are least: one by itself would stand for the class with all that is odd about it.
    affordable = max(2, min(settings.refit_samples // active, _MULTIPLICATIONS // (active * active * size)))
    return repair.refitted_head(
        statistics,
        [entry.id for entry in registry.retired()],
        per_class=min(settings.refit_per_class, affordable),
        generator=generator(knowledge.seed, "decisions", device=knowledge.device),
        scale=knowledge.settings.replay.scale,
        weight_decay=settings.refit_decay,
        iterations=_ITERATIONS,
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(_is_count(item) for item in value)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(_is_text(item) for item in value)


_KINDS: Mapping[str, type[Any]] = {
    "rename": Rename,
    "merge": Merge,
    "split": Split,
    "reject": Reject,
    "undo": Undo,
}
_FORMS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "id": (_is_count, "the id of a class"),
    "into": (_is_count, "the id of a class"),
    "ids": (_are_counts, "a list of ids of classes"),
    "labels": (_are_counts, "a list of numbers of parts, from 0"),
    "name": (_is_text, "a text"),
    "names": (_are_texts, "a list of texts"),
    "when": (_is_text, "a text"),
}
