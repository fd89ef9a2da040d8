import json
from typing import Any

import pytest

from inlay.errors import InlayError
from inlay.registry import ClassEntry, ClassRegistry


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


def entry(**changes: object) -> dict[str, object]:
    return {"id": 0, "name": "cat", "stage": 0, "size": None, "kind": "labelled"} | changes


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"classes": []}, "it is not a list of classes"),
        (["cat"], "class 0 does not have exactly the keys id, kind, name, size, stage"),
        ([entry(colour="red")], "class 0 does not have exactly the keys"),
        ([{"id": 0, "name": "cat", "stage": 0, "size": None}], "class 0 does not have exactly the keys"),
        ([entry(id=1)], "the id of class 0 is 1"),
        ([entry(id=False)], "the id of class 0 is False"),
        ([entry(), entry(name="dog")], "the id of class 1 is 0"),
        ([entry(name=3)], "class 0 has a wrong name or kind"),
        ([entry(kind="guessed")], "class 0 has a wrong name or kind"),
        ([entry(stage="0")], "class 0 has a wrong stage or size"),
        ([entry(stage=-1)], "class 0 has a wrong stage or size"),
        ([entry(size=-5)], "class 0 has a wrong stage or size"),
        ([entry(size=1.5)], "class 0 has a wrong stage or size"),
        ([entry(), entry(id=1)], "class 1 has an empty name or the name of another class"),
        ([entry(name="")], "class 0 has an empty name"),
        ([entry(stage=1), entry(id=1, name="dog")], "class 1 belongs to an earlier stage"),
    ],
)
def test_damaged_json_is_refused(data: object, reason: str) -> None:
    with pytest.raises(InlayError) as caught:
        ClassRegistry.from_json(data)
    assert str(caught.value).startswith(f"The class registry was damaged or edited by hand ({reason}")
    assert str(caught.value).endswith("; put back the file that inlay wrote.")
