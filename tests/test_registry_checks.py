import pytest

from inlay.errors import InlayError
from inlay.registry import Change, ClassEntry, ClassRegistry, Event


def entry(**changes: object) -> dict[str, object]:
    return {"id": 0, "name": "cat", "stage": 0, "size": None, "kind": "labelled"} | changes


def renaming(**changes: object) -> dict[str, object]:
    return {"id": 0, "field": "name", "old": "kitten", "new": "cat"} | changes


def with_event(**changes: object) -> dict[str, object]:
    event = {"stage": 0, "what": "rename", "when": "", "changes": [renaming()]} | changes
    return {"classes": [entry()], "history": [event]}


def test_the_undamaged_form_of_what_is_refused_below_loads() -> None:
    registry = ClassRegistry.from_json(with_event())
    assert registry.history == (Event(0, "rename", "", (Change(0, "name", "kitten", "cat"),)),)
    registry.undo()
    assert registry.names == ("kitten",)


def test_classes_of_older_runs_load_without_the_later_keys() -> None:
    registry = ClassRegistry.from_json([entry(), entry(id=1, name="dog", stage=1, size=4, kind="discovered")])
    assert list(registry) == [ClassEntry(0, "cat", 0, None, "labelled"), ClassEntry(1, "dog", 1, 4, "discovered")]
    assert registry.active() == tuple(registry) and registry.history == ()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"classes": []}, "it does not have exactly the keys classes, history"),
        ("cat", "it does not have exactly the keys classes, history"),
        ({"classes": {}, "history": []}, "its classes or its history are not a list"),
        (["cat"], "class 0 lacks one of the keys id, kind, name, size, stage or has another"),
        ([entry(colour="red")], "class 0 lacks one of the keys"),
        ([{"id": 0, "name": "cat", "stage": 0, "size": None}], "class 0 lacks one of the keys"),
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
        ([entry(status="gone")], "class 0 has a wrong status or note"),
        ([entry(status="split into 1")], "class 0 has a wrong status or note"),
        ([entry(note=3)], "class 0 has a wrong status or note"),
        ([entry(medoids=[{"path": "a.png"}])], "class 0 has wrong medoids"),
        ([entry(medoids=[{"path": "a.png", "pixels": 3}])], "class 0 has wrong medoids"),
        ([entry(status="merged into 1")], "class 0 is merged into 1, which is not there"),
        ([entry(status="merged into 0")], "class 0 is merged without end"),
        (
            [entry(status="merged into 1"), entry(id=1, name="dog", status="merged into 0")],
            "class 0 is merged without end",
        ),
        (with_event(what="guess"), "event 0 has wrong values"),
        (with_event(when=None), "event 0 has wrong values"),
        (with_event(what="undo"), "event 0 undoes nothing"),
        (with_event(colour="red"), "event 0 does not have exactly the keys"),
        (with_event(changes=[renaming(field="kind")]), "event 0 has wrong values"),
        (with_event(changes=[renaming(field=[])]), "event 0 has wrong values"),
        (with_event(changes=[renaming(new=3)]), "event 0 has wrong values"),
        (with_event(changes=[renaming(id=1)]), "event 0 changed a class that is not there"),
        (with_event(changes=[renaming(new="dog")]), "event 0 does not lead to what came after it"),
    ],
)
def test_damaged_json_is_refused(data: object, reason: str) -> None:
    with pytest.raises(InlayError) as caught:
        ClassRegistry.from_json(data)
    assert str(caught.value).startswith(f"The class registry was damaged or edited by hand ({reason}")
    assert str(caught.value).endswith("; put back the file that inlay wrote.")
