"""The register of every class a model has learned, in the order of the joint head's outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from typing import Literal, get_args

from inlay.errors import InlayError

__all__ = ["ClassEntry", "ClassKind", "ClassRegistry"]

ClassKind = Literal["labelled", "discovered"]

_ENTRY_KEYS = {"id", "name", "stage", "size", "kind"}
_NAMES_SHOWN = 10


@dataclass(frozen=True)
class ClassEntry:
    """One class of the model.

    Attributes:
        id: index of the class among the outputs of the joint head; it never changes.
        name: text shown to people; unique in the registry, free to change.
        stage: stage that brought the class, 0 for the base stage.
        size: number of training images given to the class, None where unknown.
        kind: "labelled" when the class came with labels, "discovered" when it was found without.
    """

    id: int
    name: str
    stage: int
    size: int | None
    kind: ClassKind


class ClassRegistry:
    """Append-only list of classes whose ids are the output indices of the joint head."""

    def __init__(self) -> None:
        self._entries: list[ClassEntry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ClassEntry]:
        return iter(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassRegistry) and self._entries == other._entries

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all classes, in the order of their ids."""
        return tuple(entry.name for entry in self._entries)

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
                and going on within a stage; a number whose name is taken is passed over.
            stage: stage that brings the classes, 0 for the base stage; not before the latest one.
            kind: whether the classes came with labels.
            sizes: number of training images of each class; unknown when left out.

        Returns:
            The new entries.

        Raises:
            InlayError: if a name is empty or taken; nothing is added then.
            ValueError: if the stage runs backwards, sizes do not fit, or labelled classes come without names.
        """
        if isinstance(classes, str):
            raise ValueError("classes must be a list of names or a number of classes, not a single name")
        if stage < 0 or (self._entries and stage < self._entries[-1].stage):
            raise ValueError(f"stage {stage} is negative or comes before the latest stage of the registry")
        if isinstance(classes, int):
            if kind == "labelled" or classes < 0:
                raise ValueError("a number of classes must be 0 or more and is for discovered classes only")
            names = self._default_names(classes, stage)
        else:
            names = list(classes)
        if sizes is None:
            sizes = [None] * len(names)
        if len(sizes) != len(names) or any(size is not None and size < 0 for size in sizes):
            raise ValueError(f"sizes must hold {len(names)} numbers of images, each 0 or more or None")
        self._check_new_names(names)
        first = len(self._entries)
        added = [
            ClassEntry(first + i, name, stage, size, kind)
            for i, (name, size) in enumerate(zip(names, sizes, strict=True))
        ]
        self._entries.extend(added)
        return tuple(added)

    def rename(self, id: int, name: str) -> None:
        """Give class `id` another name; its id, stage and size stay.

        Raises:
            InlayError: if there is no such id, or the name is empty or belongs to another class.
        """
        if not 0 <= id < len(self._entries):
            raise InlayError(f"There is no class with id {id}; write an id from 0 to {len(self) - 1}.")
        if name != self._entries[id].name:
            self._check_new_names([name])
            self._entries[id] = replace(self._entries[id], name=name)

    def of_stage(self, stage: int) -> tuple[ClassEntry, ...]:
        """Classes that `stage` brought."""
        return tuple(entry for entry in self._entries if entry.stage == stage)

    def before(self, stage: int) -> tuple[ClassEntry, ...]:
        """Classes of all stages earlier than `stage`."""
        return tuple(entry for entry in self._entries if entry.stage < stage)

    def id_of(self, name: str) -> int:
        """Id of the class called `name`.

        Raises:
            InlayError: if no class has this name.
        """
        for entry in self._entries:
            if entry.name == name:
                return entry.id
        shown = ", ".join(self.names[:_NAMES_SHOWN]) + (", ..." if len(self) > _NAMES_SHOWN else "")
        raise InlayError(f"There is no class named {name!r}; write one of: {shown or '(no class yet)'}.")

    def to_json(self) -> list[dict[str, object]]:
        """Entries as plain JSON objects, in the order of their ids."""
        return [asdict(entry) for entry in self._entries]

    @classmethod
    def from_json(cls, data: object) -> ClassRegistry:
        """Rebuild a registry from what `to_json` gave.

        Raises:
            InlayError: if the data is not what `to_json` writes.
        """
        if not isinstance(data, list):
            raise _damaged("it is not a list of classes")
        registry = cls()
        for position, item in enumerate(data):
            registry._append_checked(_entry_from_json(item, position))
        return registry

    def _append_checked(self, entry: ClassEntry) -> None:
        if self._entries and entry.stage < self._entries[-1].stage:
            raise _damaged(f"class {entry.id} belongs to an earlier stage than the class before it")
        try:
            self._check_new_names([entry.name])
        except InlayError as error:
            raise _damaged(f"class {entry.id} has an empty name or the name of another class") from error
        self._entries.append(entry)

    def _default_names(self, number: int, stage: int) -> list[str]:
        taken = set(self.names)
        numbered = (f"new-{stage}.{i}" for i in count(len(self.of_stage(stage)) + 1))
        return list(islice((name for name in numbered if name not in taken), number))

    def _check_new_names(self, names: Sequence[str]) -> None:
        taken = set(self.names)
        for name in names:
            if not name.strip():
                raise InlayError("A class name cannot be empty; write at least one visible character.")
            if name in taken:
                raise InlayError(f"The class name {name!r} is already taken; write a name used only once.")
            taken.add(name)


def _damaged(reason: str) -> InlayError:
    return InlayError(
        f"The class registry was damaged or edited by hand ({reason}); put back the file that inlay wrote."
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _entry_from_json(item: object, position: int) -> ClassEntry:
    if not isinstance(item, dict) or item.keys() != _ENTRY_KEYS:
        raise _damaged(f"class {position} does not have exactly the keys {', '.join(sorted(_ENTRY_KEYS))}")
    if not _is_count(item["id"]) or item["id"] != position:
        raise _damaged(f"the id of class {position} is {item['id']!r}")
    if not isinstance(item["name"], str) or item["kind"] not in get_args(ClassKind):
        raise _damaged(f"class {position} has a wrong name or kind")
    if not _is_count(item["stage"]) or not (item["size"] is None or _is_count(item["size"])):
        raise _damaged(f"class {position} has a wrong stage or size")
    return ClassEntry(**item)
