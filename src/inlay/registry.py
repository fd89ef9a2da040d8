"""The register of every class a model has learned, in the order of the joint head's outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice

from inlay.errors import InlayError
from inlay.registry_checks import changed, check_entries, check_history
from inlay.registry_entries import Change, ClassEntry, ClassKind, Event, EventKind, Medoid, check_class_name, damaged

__all__ = ["Change", "ClassEntry", "ClassKind", "ClassRegistry", "Event", "Medoid", "check_class_name"]

_NAMES_SHOWN = 10
_ROOM_FOR_NUMBER = 90


class ClassRegistry:
    """Append-only list of classes whose ids are the output indices of the joint head.

    A class that is merged, split or rejected keeps its id and its entry; its status says what became of it.
    """

    def __init__(self) -> None:
        self._entries: list[ClassEntry] = []
        self._history: list[Event] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ClassEntry]:
        return iter(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassRegistry) and self._entries == other._entries and self._history == other._history

    # Reading

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all classes, retired ones too, in the order of their ids."""
        return tuple(entry.name for entry in self._entries)

    @property
    def history(self) -> tuple[Event, ...]:
        """Everything that was decided about classes, in order."""
        return tuple(self._history)

    def active(self) -> tuple[ClassEntry, ...]:
        """Classes that can be predicted."""
        return tuple(entry for entry in self._entries if entry.is_active)

    def retired(self) -> tuple[ClassEntry, ...]:
        """Classes that were merged, split, rejected or withdrawn."""
        return tuple(entry for entry in self._entries if not entry.is_active)

    def resolve(self, id: int) -> int | None:
        """Id of the active class that has the images of class `id` now: its own, or that which merges lead to.

        None where the way ends at a class that was rejected, withdrawn or split.

        Raises:
            InlayError: if there is no such id.
        """
        entry = self._entry(id)
        while not entry.is_active:
            if entry.is_split or not entry.successors:
                return None
            entry = self._entries[entry.successors[0]]
        return entry.id

    def of_stage(self, stage: int) -> tuple[ClassEntry, ...]:
        """Classes that the images of `stage` brought."""
        return tuple(entry for entry in self._entries if entry.stage == stage)

    def before(self, stage: int) -> tuple[ClassEntry, ...]:
        """Classes of all stages earlier than `stage`."""
        return tuple(entry for entry in self._entries if entry.stage < stage)

    def id_of(self, name: str) -> int:
        """Id of the active class called `name`.

        Raises:
            InlayError: if no active class has this name.
        """
        names = {entry.name: entry.id for entry in self.active()}
        if name in names:
            return names[name]
        shown = ", ".join(islice(names, _NAMES_SHOWN)) + (", ..." if len(names) > _NAMES_SHOWN else "")
        raise InlayError(f"There is no class named {name!r}; write one of: {shown or '(no class yet)'}.")

    # Adding

    def add(
        self,
        classes: Sequence[str] | int,
        *,
        stage: int,
        kind: ClassKind,
        sizes: Sequence[int | None] | None = None,
    ) -> tuple[ClassEntry, ...]:
        """Append the classes of a stage after all others.

        Args:
            classes: names of the classes, or how many discovered classes to name "new-<stage>.<i>", i from 1
                and going on within a stage; a number whose name is or was taken is passed over.
            stage: stage that brings the classes, 0 for the base stage; not before the latest one.
            kind: whether the classes came with labels.
            sizes: number of training images of each class; unknown when left out.

        Returns:
            The new entries.

        Raises:
            InlayError: if a name is no good (see `check_class_name`) or taken; nothing is added then.
            ValueError: if the stage runs backwards, sizes do not fit, or labelled classes come without names.
        """
        if isinstance(classes, str):
            raise ValueError("classes must be a list of names or a number of classes, not a single name")
        if stage < 0 or stage < self._latest_stage:
            raise ValueError(f"stage {stage} is negative or comes before the latest stage of the registry")
        if isinstance(classes, int):
            if kind == "labelled" or classes < 0:
                raise ValueError("a number of classes must be 0 or more and is for discovered classes only")
            names = self._numbered(f"new-{stage}.", classes, start=len(self.of_stage(stage)) + 1)
        else:
            names = list(classes)
        self._check_new_names(names, {entry.name for entry in self.active()})
        return self._append(names, sizes, stage=stage, kind=kind, status="active")

    def annotate(self, id: int, *, note: str | None = None, medoids: Sequence[Medoid] | None = None) -> None:
        """Write down what people say about class `id`, and the images that stand for it; None leaves it as it is.

        Raises:
            InlayError: if there is no such id.
        """
        entry = self._entry(id)
        self._entries[id] = replace(
            entry,
            note=entry.note if note is None else note,
            medoids=entry.medoids if medoids is None else tuple(medoids),
        )

    # Deciding

    def rename(self, id: int, name: str, *, when: str = "") -> None:
        """Give class `id` another name; its id, stage and size stay. The name it has already is no event.

        Raises:
            InlayError: if there is no such active class, or the name is no good or that of another active class.
        """
        entry = self._active(id)
        if name != entry.name:
            self._check_new_names([name], {other.name for other in self.active()})
            self._record("rename", [Change(id, "name", entry.name, name)], when)

    def merge(self, ids: Sequence[int], into: int, *, when: str = "") -> None:
        """Make discovered classes one with another class, which gains their images.

        Args:
            ids: the classes that end; `into` among them is passed over.
            into: the class that stays: discovered, or a labelled one that the others turned out to be.
            when: time of the decision.

        Raises:
            InlayError: if a class is not active, or one that would end came with labels, or none would end.
        """
        target = self._active(into)
        sources = [self._discovered(id, "merged into another") for id in dict.fromkeys(ids) if id != into]
        if not sources:
            raise InlayError(f"A merge needs another class than {into}; write the ids of those that it takes over.")
        sizes = [entry.size for entry in (target, *sources)]
        known = [size for size in sizes if size is not None]
        total = sum(known) if len(known) == len(sizes) else None
        changes = [Change(entry.id, "status", entry.status, f"merged into {into}") for entry in sources]
        self._record("merge", [*changes, Change(into, "size", target.size, total)], when)

    def split(
        self,
        id: int,
        parts: Sequence[str] | int,
        *,
        sizes: Sequence[int | None] | None = None,
        when: str = "",
    ) -> tuple[int, ...]:
        """End a discovered class and put new ones of the same stage in its place.

        Args:
            id: the class that ends.
            parts: names of the new classes, which may use its name again, or how many to name "<name>.<i>".
            sizes: number of training images of each part; unknown when left out.
            when: time of the decision.

        Returns:
            Ids of the parts, after all others.

        Raises:
            InlayError: if the class is not active or came with labels, there are fewer than two parts, or a name is
                no good or taken.
            ValueError: if sizes do not fit.
        """
        entry = self._discovered(id, "split")
        number = parts if isinstance(parts, int) else len(parts)
        if number < 2 or isinstance(parts, str):
            raise InlayError(f"A split of class {id} needs at least two parts; write 2 or more.")
        names = self._numbered(f"{entry.name[:_ROOM_FOR_NUMBER]}.", parts) if isinstance(parts, int) else list(parts)
        self._check_new_names(names, {other.name for other in self.active() if other.id != id})
        added = self._append(names, sizes, stage=entry.stage, kind="discovered", status="withdrawn")
        ids = tuple(part.id for part in added)
        changes = [Change(id, "status", entry.status, f"split into {', '.join(map(str, ids))}")]
        self._record("split", [*changes, *(Change(part, "status", "withdrawn", "active") for part in ids)], when)
        return ids

    def reject(self, id: int, *, when: str = "") -> None:
        """End a discovered class that stands for nothing.

        Raises:
            InlayError: if the class is not active or came with labels.
        """
        entry = self._discovered(id, "rejected")
        self._record("reject", [Change(id, "status", entry.status, "rejected")], when)

    def undo(self, *, when: str = "") -> Event:
        """Take back the latest decision that still stands; called again, the one before it.

        Parts of a split keep their ids and are withdrawn, so that no id ever stands for two classes.

        Returns:
            The event that was taken back.

        Raises:
            InlayError: if no decision stands, a later stage was built on it, or its name was given away since.
        """
        standing: list[Event] = []
        for event in self._history:
            if event.what == "undo":
                standing.pop()
            else:
                standing.append(event)
        if not standing:
            raise InlayError("There is no decision to undo; rename, merge, split or reject a class first.")
        last = standing[-1]
        if last.stage < self._latest_stage:
            raise InlayError(
                f"The latest decision was made before stage {self._latest_stage} was learned; roll the run back to "
                f"stage {last.stage} to undo it."
            )
        back = [change.reversed() for change in reversed(last.changes)]
        self._check_names_given_back(back)
        self._record("undo", back, when)
        return last

    # Writing down

    def to_json(self) -> dict[str, object]:
        """Classes in the order of their ids, and the history, as plain JSON objects."""
        return {
            "classes": [entry.to_json() for entry in self._entries],
            "history": [event.to_json() for event in self._history],
        }

    @classmethod
    def from_json(cls, data: object) -> ClassRegistry:
        """Rebuild a registry from what `to_json` gave, or from the bare list of classes that older runs have.

        Raises:
            InlayError: if the data is not what `to_json` writes.
        """
        if isinstance(data, list):
            data = {"classes": data, "history": []}
        if not isinstance(data, dict) or data.keys() != {"classes", "history"}:
            raise damaged("it does not have exactly the keys classes, history")
        if not isinstance(data["classes"], list) or not isinstance(data["history"], list):
            raise damaged("its classes or its history are not a list")
        registry = cls()
        registry._entries = [ClassEntry.from_json(item, position) for position, item in enumerate(data["classes"])]
        registry._history = [Event.from_json(item, position) for position, item in enumerate(data["history"])]
        check_entries(registry._entries)
        check_history(registry._entries, registry._history)
        return registry

    # Inner workings

    @property
    def _latest_stage(self) -> int:
        return max((entry.stage for entry in self._entries), default=0)

    def _entry(self, id: int) -> ClassEntry:
        if not 0 <= id < len(self._entries):
            raise InlayError(f"There is no class with id {id}; write an id from 0 to {len(self) - 1}.")
        return self._entries[id]

    def _active(self, id: int) -> ClassEntry:
        entry = self._entry(id)
        if not entry.is_active:
            raise InlayError(f"Class {id} ({entry.name}) is {entry.status}; write the id of an active class.")
        return entry

    def _discovered(self, id: int, what: str) -> ClassEntry:
        entry = self._active(id)
        if entry.kind == "labelled":
            raise InlayError(
                f"Class {id} ({entry.name}) came with labels and cannot be {what}; write the id of a discovered class."
            )
        return entry

    def _append(
        self, names: Sequence[str], sizes: Sequence[int | None] | None, *, stage: int, kind: ClassKind, status: str
    ) -> tuple[ClassEntry, ...]:
        if sizes is None:
            sizes = [None] * len(names)
        if len(sizes) != len(names) or any(size is not None and size < 0 for size in sizes):
            raise ValueError(f"sizes must hold {len(names)} numbers of images, each 0 or more or None")
        pairs = zip(names, sizes, strict=True)
        added = [ClassEntry(i, name, stage, size, kind, status) for i, (name, size) in enumerate(pairs, len(self))]
        self._entries.extend(added)
        return tuple(added)

    def _record(self, what: EventKind, changes: Sequence[Change], when: str) -> None:
        self._history.append(Event(self._latest_stage, what, when, tuple(changes)))
        self._entries = changed(self._entries, changes)

    def _numbered(self, prefix: str, number: int, start: int = 1) -> list[str]:
        taken = set(self.names)
        return list(islice((name for i in count(start) if (name := f"{prefix}{i}") not in taken), number))

    def _check_new_names(self, names: Sequence[str], taken: set[str]) -> None:
        for name in names:
            check_class_name(name)
            if name in taken:
                raise InlayError(f"The class name {name!r} is already taken; write a name used only once.")
            taken = taken | {name}

    def _check_names_given_back(self, changes: Sequence[Change]) -> None:
        """Refuse changes after which two active classes would have one name."""
        seen: set[str] = set()
        for entry in changed(self._entries, changes):
            if entry.is_active and entry.name in seen:
                raise InlayError(
                    f"The latest decision cannot be undone, as another class was called {entry.name!r} since; give "
                    f"that one another name."
                )
            if entry.is_active:
                seen.add(entry.name)
