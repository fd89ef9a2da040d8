import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.errors import InlayError
from inlay.registry import Change, ClassEntry, ClassRegistry, Event, Medoid


def two_stages() -> ClassRegistry:
    registry = ClassRegistry()
    registry.add(["cat", "dog"], stage=0, kind="labelled", sizes=[5, 6])
    registry.add(3, stage=1, kind="discovered")
    return registry


def test_ids_follow_the_outputs_and_discovered_classes_get_numbered_names() -> None:
    registry = two_stages()
    added = registry.add(1, stage=2, kind="discovered", sizes=[9])
    assert added == (ClassEntry(5, "new-2.1", 2, 9, "discovered"),)
    assert [entry.id for entry in registry] == list(range(len(registry)))
    assert registry.names == ("cat", "dog", "new-1.1", "new-1.2", "new-1.3", "new-2.1")


def test_stages_split_the_registry_in_order() -> None:
    registry = two_stages()
    assert [entry.name for entry in registry.of_stage(1)] == ["new-1.1", "new-1.2", "new-1.3"]
    assert [entry.name for entry in registry.before(1)] == ["cat", "dog"]
    assert registry.before(0) == ()
    assert registry.of_stage(7) == ()
    assert registry.before(2) == tuple(registry)


def test_rename_keeps_everything_but_the_name() -> None:
    registry = two_stages()
    registry.rename(3, "fox")
    assert registry.id_of("fox") == 3
    assert registry.of_stage(1)[1] == ClassEntry(3, "fox", 1, None, "discovered")
    registry.rename(3, "fox")
    assert registry.names[3] == "fox"


def test_default_names_pass_over_a_name_that_is_taken() -> None:
    registry = two_stages()
    registry.rename(0, "new-2.1")
    registry.add(2, stage=2, kind="discovered")
    assert registry.names[-2:] == ("new-2.2", "new-2.3")


def test_numbering_goes_on_within_a_stage_and_does_not_reuse_a_freed_name() -> None:
    registry = two_stages()
    registry.rename(2, "fox")
    registry.add(1, stage=1, kind="discovered")
    assert registry.names[-1] == "new-1.4"


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["fox", "cat"], "The class name 'cat' is already taken; write a name used only once."),
        (["fox", "fox"], "The class name 'fox' is already taken; write a name used only once."),
        (["fox", " "], "A class name cannot be empty; write at least one visible character."),
    ],
)
def test_bad_names_add_nothing(names: list[str], sentence: str) -> None:
    registry = two_stages()
    with pytest.raises(InlayError) as caught:
        registry.add(names, stage=2, kind="labelled")
    assert str(caught.value) == sentence
    assert registry == two_stages()


def test_rename_refuses_wrong_ids_and_taken_names() -> None:
    registry = two_stages()
    for id in (-1, 5):
        with pytest.raises(InlayError, match=f"There is no class with id {id}; write an id from 0 to 4."):
            registry.rename(id, "fox")
    with pytest.raises(InlayError, match="'dog' is already taken"):
        registry.rename(0, "dog")
    with pytest.raises(InlayError, match="cannot be empty"):
        registry.rename(0, "")
    assert registry == two_stages()


def test_unknown_name_lists_the_classes() -> None:
    with pytest.raises(InlayError, match=r"no class named 'cow'; write one of: cat, dog, new-1.1"):
        two_stages().id_of("cow")
    with pytest.raises(InlayError, match=r"write one of: \(no class yet\)"):
        ClassRegistry().id_of("cow")


@pytest.mark.parametrize(
    ("classes", "arguments", "message"),
    [
        (["fox"], {"stage": 0, "kind": "labelled"}, "comes before the latest stage"),
        (["fox"], {"stage": -1, "kind": "labelled"}, "is negative"),
        (2, {"stage": 2, "kind": "labelled"}, "for discovered classes only"),
        (-1, {"stage": 2, "kind": "discovered"}, "must be 0 or more"),
        (2, {"stage": 2, "kind": "discovered", "sizes": [1]}, "sizes must hold 2"),
        (1, {"stage": 2, "kind": "discovered", "sizes": [-1]}, "sizes must hold 1"),
        ("fox", {"stage": 2, "kind": "labelled"}, "not a single name"),
    ],
)
def test_programming_errors(classes: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        two_stages().add(classes, **arguments)


def test_json_round_trip() -> None:
    registry = two_stages()
    registry.rename(4, "höhle")
    text = json.dumps(registry.to_json())
    restored = ClassRegistry.from_json(json.loads(text))
    assert restored == registry
    assert restored != two_stages()
    restored.add(1, stage=2, kind="discovered")
    assert restored.names[-1] == "new-2.1"


def sized() -> ClassRegistry:
    """Two labelled classes and, from stage 1, three discovered ones of 10, 20 and 30 images."""
    registry = ClassRegistry()
    registry.add(["cat", "dog"], stage=0, kind="labelled", sizes=[5, 6])
    registry.add(3, stage=1, kind="discovered", sizes=[10, 20, 30])
    return registry


def statuses(registry: ClassRegistry) -> list[str]:
    return [entry.status for entry in registry]


def test_a_merge_moves_images_and_is_followed() -> None:
    registry = sized()
    registry.merge([3, 2, 3], into=2, when="today")
    registry.merge([2], into=0)
    assert statuses(registry) == ["active", "active", "merged into 0", "merged into 2", "active"]
    assert [registry.resolve(id) for id in range(5)] == [0, 1, 0, 0, 4]
    assert [entry.size for entry in registry] == [5 + 10 + 20, 6, 10 + 20, 20, 30]
    assert [entry.id for entry in registry.active()] == [0, 1, 4]
    assert [entry.id for entry in registry.retired()] == [2, 3]
    first = Event(1, "merge", "today", (Change(3, "status", "active", "merged into 2"), Change(2, "size", 10, 30)))
    assert registry.history[0] == first


def test_an_unknown_size_makes_the_sum_unknown_and_undo_brings_it_back() -> None:
    registry = two_stages()
    registry.merge([2], into=0)
    assert [entry.size for entry in registry] == [None, 6, None, None, None]
    registry.undo()
    assert [entry.size for entry in registry] == [5, 6, None, None, None]


def test_parts_of_a_split_come_last_and_belong_to_the_stage_of_the_whole() -> None:
    registry = sized()
    registry.add(1, stage=2, kind="discovered")
    assert registry.split(3, 2, sizes=[4, 16]) == (6, 7)
    assert registry.split(2, ["new-1.1", "wolf"]) == (8, 9)
    assert statuses(registry)[2:4] == ["split into 8, 9", "split into 6, 7"]
    expected = (
        ClassEntry(6, "new-1.2.1", 1, 4, "discovered"),
        ClassEntry(7, "new-1.2.2", 1, 16, "discovered"),
        ClassEntry(8, "new-1.1", 1, None, "discovered"),
        ClassEntry(9, "wolf", 1, None, "discovered"),
    )
    assert tuple(registry)[6:] == expected and registry.of_stage(1)[-4:] == expected
    assert registry.id_of("new-1.1") == 8 and registry.resolve(3) is None
    assert ClassRegistry.from_json(json.loads(json.dumps(registry.to_json()))) == registry


def test_parts_of_a_class_with_the_longest_name_have_good_names() -> None:
    registry = sized()
    registry.rename(2, "x" * 100)
    parts = registry.split(2, 2)
    assert [registry.names[id] for id in parts] == ["x" * 90 + ".1", "x" * 90 + ".2"]


def test_undo_of_a_split_withdraws_the_parts_and_never_gives_their_ids_again() -> None:
    registry = sized()
    registry.split(2, 2)
    registry.undo(when="now")
    assert statuses(registry) == [*["active"] * 5, "withdrawn", "withdrawn"]
    assert registry.split(3, 2) == (7, 8)
    registry.add(1, stage=2, kind="discovered")
    assert registry.names[-1] == "new-2.1" and len(registry) == 10
    assert [event.what for event in registry.history] == ["split", "undo", "split"]
    assert registry.history[1].when == "now" and registry.resolve(5) is None


def test_undo_walks_back_to_the_beginning() -> None:
    registry = sized()
    registry.rename(2, "fox")
    registry.reject(4)
    registry.merge([3], into=2)
    assert [registry.undo().what for _ in range(3)] == ["merge", "reject", "rename"]
    assert list(registry) == list(sized())
    with pytest.raises(InlayError, match="There is no decision to undo; rename, merge, split or reject a class first"):
        registry.undo()
    registry.rename(2, "wolf")
    assert registry.undo().what == "rename" and registry.names[2] == "new-1.1"


def test_undo_stops_where_a_later_stage_was_built_on_the_decision() -> None:
    registry = sized()
    registry.rename(2, "fox")
    registry.add(1, stage=2, kind="discovered")
    with pytest.raises(InlayError, match="before stage 2 was learned; roll the run back to stage 1 to undo it"):
        registry.undo()
    assert registry.names[2] == "fox"


def test_undo_never_gives_two_classes_one_name() -> None:
    registry = sized()
    registry.rename(2, "fox")
    registry.add(["new-1.1"], stage=1, kind="labelled")
    with pytest.raises(InlayError, match=r"another class was called 'new-1\.1' since; give that one another name"):
        registry.undo()
    assert registry.names[2] == "fox" and len(registry.history) == 1


def test_the_name_of_a_retired_class_is_free() -> None:
    registry = sized()
    registry.merge([3], into=2)
    registry.rename(2, "new-1.2")
    assert registry.id_of("new-1.2") == 2
    registry.reject(2)
    with pytest.raises(InlayError, match=r"no class named 'new-1\.2'; write one of: cat, dog, new-1\.3"):
        registry.id_of("new-1.2")


def test_notes_and_medoids_are_kept_and_are_no_events() -> None:
    registry = sized()
    registry.annotate(2, note="blurred\nmostly", medoids=[Medoid("a/b.png", "12ab")])
    registry.annotate(2, note="blurred")
    assert tuple(registry)[2] == ClassEntry(
        2, "new-1.1", 1, 10, "discovered", "active", "blurred", (Medoid("a/b.png", "12ab"),)
    )
    assert registry.history == ()
    assert ClassRegistry.from_json(json.loads(json.dumps(registry.to_json()))) == registry


RETIRED = "is rejected; write the id of an active class."
LABELLED = "came with labels and cannot be {}; write the id of a discovered class."


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (
            lambda r: r.merge([0], 2),
            "Class 0 (cat) " + LABELLED.format("merged into another"),
        ),
        (
            lambda r: r.merge([0], 1),
            "Class 0 (cat) " + LABELLED.format("merged into another"),
        ),
        (lambda r: r.reject(1), "Class 1 (dog) " + LABELLED.format("rejected")),
        (lambda r: r.split(1, 2), "Class 1 (dog) " + LABELLED.format("split")),
        (lambda r: r.merge([2], 4), f"Class 4 (new-1.3) {RETIRED}"),
        (lambda r: r.merge([4], 2), f"Class 4 (new-1.3) {RETIRED}"),
        (lambda r: r.merge([2], 2), "A merge needs another class than 2; write the ids of those that it takes over."),
        (lambda r: r.merge([], 2), "A merge needs another class than 2; write the ids of those that it takes over."),
        (lambda r: r.reject(4), f"Class 4 (new-1.3) {RETIRED}"),
        (lambda r: r.rename(4, "fox"), f"Class 4 (new-1.3) {RETIRED}"),
        (lambda r: r.split(4, 2), f"Class 4 (new-1.3) {RETIRED}"),
        (lambda r: r.split(2, 1), "A split of class 2 needs at least two parts; write 2 or more."),
        (lambda r: r.split(2, ["fox"]), "A split of class 2 needs at least two parts; write 2 or more."),
        (lambda r: r.split(2, ["a", "a"]), "The class name 'a' is already taken; write a name used only once."),
        (lambda r: r.split(2, ["a", "cat"]), "The class name 'cat' is already taken; write a name used only once."),
        (lambda r: r.merge([2, 9], 3), "There is no class with id 9; write an id from 0 to 4."),
        (lambda r: r.resolve(-1), "There is no class with id -1; write an id from 0 to 4."),
        (lambda r: r.annotate(5, note=""), "There is no class with id 5; write an id from 0 to 4."),
        (lambda r: r.rename(2, "a\nb"), "The class name 'a\\nb' has control characters; write plain text."),
    ],
)
def test_illegal_steps_change_nothing(step: Callable[[ClassRegistry], object], sentence: str) -> None:
    registry, before = sized(), sized()
    for each in (registry, before):
        each.reject(4)
    with pytest.raises(InlayError) as caught:
        step(registry)
    assert str(caught.value) == sentence
    assert registry == before


def test_sizes_of_parts_must_fit() -> None:
    registry = sized()
    with pytest.raises(ValueError, match="sizes must hold 2"):
        registry.split(2, 2, sizes=[1])
    assert registry == sized()


class Walk:
    """Random steps on a registry, beside all that was known before each."""

    def __init__(self, data: st.DataObject) -> None:
        self.registry = sized()
        self.before: list[list[ClassEntry]] = []
        self._data = data

    def step(self) -> None:
        found = [entry.id for entry in self.registry.active() if entry.kind == "discovered"]
        steps: list[Callable[[list[int]], object]] = [self._rename]
        if self.before:
            steps.append(self._undo)
        if found:
            steps += [self._merge, self._split, self._reject]
        chosen = self._data.draw(st.sampled_from(steps))
        if chosen != self._undo:
            self.before.append(list(self.registry))
        chosen(found)

    def _rename(self, found: list[int]) -> None:
        id = self._data.draw(st.sampled_from([entry.id for entry in self.registry.active()]))
        # Names of retired classes are used again on purpose.
        taken = {entry.name for entry in self.registry.active()}
        free = sorted({*self.registry.names, f"class {len(self.registry.history)}"} - taken)
        self.registry.rename(id, self._data.draw(st.sampled_from(free)))

    def _merge(self, found: list[int]) -> None:
        ids = self._data.draw(st.lists(st.sampled_from(found), min_size=1, max_size=3))
        others = [entry.id for entry in self.registry.active() if entry.id not in ids]
        self.registry.merge(ids, self._data.draw(st.sampled_from(others)))

    def _split(self, found: list[int]) -> None:
        self.registry.split(self._data.draw(st.sampled_from(found)), self._data.draw(st.integers(2, 3)))

    def _reject(self, found: list[int]) -> None:
        self.registry.reject(self._data.draw(st.sampled_from(found)))

    def _undo(self, found: list[int]) -> None:
        self.registry.undo()
        restored = self.before.pop()
        assert list(self.registry)[: len(restored)] == restored
        assert all(entry.status == "withdrawn" for entry in list(self.registry)[len(restored) :])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), steps=st.integers(1, 12))
def test_random_steps_keep_the_registry_whole(data: st.DataObject, steps: int) -> None:
    walk, ever = Walk(data), 0
    for _ in range(steps):
        walk.step()
        registry = walk.registry
        assert [entry.id for entry in registry] == list(range(len(registry))) and len(registry) >= ever
        ever = len(registry)
        names = [entry.name for entry in registry.active()]
        assert len(set(names)) == len(names) and {"labelled"} == {entry.kind for entry in list(registry)[:2]}
        assert all(entry.is_active for entry in list(registry)[:2])
        active = {entry.id for entry in registry.active()}
        assert {registry.resolve(entry.id) for entry in registry} - {None} == active
        assert ClassRegistry.from_json(json.loads(json.dumps(registry.to_json()))) == registry
    for _ in range(len(walk.before)):
        walk.registry.undo()
    assert list(walk.registry)[:5] == list(sized())
