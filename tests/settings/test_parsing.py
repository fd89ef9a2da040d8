import re
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from inlay.errors import InlayError
from inlay.settings.parsing import build, dotted_paths


@dataclass(frozen=True)
class Inner:
    share: float = 0.5
    size: int = field(default=3, metadata={"positive": True})


@dataclass(frozen=True)
class Outer:
    name: str = "a"
    flag: bool = False
    count: int = 2
    rate: float = 0.1
    form: Literal["one", "two"] = "one"
    moments: tuple[float, ...] = ()
    patterns: tuple[str, ...] = ()
    inner: Inner = field(default_factory=Inner)


def test_missing_fields_keep_their_defaults() -> None:
    assert build(Outer, {}) == Outer()
    assert build(Outer, {"inner": {"share": 0.25}}) == Outer(inner=Inner(share=0.25))


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("name", "b", "b"),
        ("name", "1", "1"),
        ("flag", True, True),
        ("flag", "true", True),
        ("flag", "false", False),
        ("count", 7, 7),
        ("count", "7", 7),
        ("count", 7.0, 7),
        ("count", "1e3", 1000),
        ("count", 0, 0),
        ("rate", "1e-3", 0.001),
        ("rate", "0", 0.0),
        ("rate", 2, 2.0),
        ("form", "two", "two"),
        ("moments", "0.3,0.6", (0.3, 0.6)),
        ("moments", " 0.3, 6e-1 ,", (0.3, 0.6)),
        ("moments", "0.5", (0.5,)),
        ("moments", "", ()),
        ("moments", [0.3, "0.6", 1], (0.3, 0.6, 1.0)),
        ("moments", (), ()),
        ("patterns", "layer2*, layer3*", ("layer2*", "layer3*")),
    ],
)
def test_values_become_those_of_their_field(name: str, given: Any, wanted: Any) -> None:
    found = getattr(build(Outer, {name: given}), name)
    assert found == wanted
    assert type(found) is type(wanted)
    if isinstance(wanted, tuple):
        assert [type(item) for item in found] == [type(item) for item in wanted]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"size": 1},
            "There is no setting 'size'; write one of: name, flag, count, rate, form, moments, patterns, inner.",
        ),
        ({"inner": {"sise": 1}}, "There is no setting 'inner.sise'; write one of: share, size."),
        ({"inner": 3}, "Setting 'inner' is a table of settings, such as inner.… = …, not 3."),
        ({"name": 3}, "Setting 'name' must be text; got 3."),
        ({"name": None}, "Setting 'name' must be text; got None."),
        ({"flag": "yes"}, "Setting 'flag' must be true or false; got 'yes'."),
        ({"flag": 1}, "Setting 'flag' must be true or false; got 1."),
        ({"flag": [True]}, "Setting 'flag' must be true or false; got [True]."),
        ({"count": 1.5}, "Setting 'count' must be a whole number, 0 or more; got 1.5."),
        ({"count": "many"}, "Setting 'count' must be a whole number, 0 or more; got 'many'."),
        ({"count": True}, "Setting 'count' must be a whole number, 0 or more; got True."),
        ({"count": -1}, "Setting 'count' must be a whole number, 0 or more; got -1."),
        ({"count": "inf"}, "Setting 'count' must be a whole number, 0 or more; got 'inf'."),
        ({"rate": "nan"}, "Setting 'rate' must be a number, 0 or more; got 'nan'."),
        ({"rate": "inf"}, "Setting 'rate' must be a number, 0 or more; got 'inf'."),
        ({"rate": "-1e-3"}, "Setting 'rate' must be a number, 0 or more; got '-1e-3'."),
        ({"rate": None}, "Setting 'rate' must be a number, 0 or more; got None."),
        ({"rate": [1.0]}, "Setting 'rate' must be a number, 0 or more; got [1.0]."),
        ({"form": "three"}, "Setting 'form' must be one of one, two; got 'three'."),
        ({"form": 1}, "Setting 'form' must be one of one, two; got 1."),
        ({"moments": 0.5}, "Setting 'moments' must be a list, as text with commas between its parts; got 0.5."),
        (
            {"moments": {"a": 1}},
            "Setting 'moments' must be a list, as text with commas between its parts; got {'a': 1}.",
        ),
        ({"moments": "0.3,soon"}, "Setting 'moments' must be a number, 0 or more; got 'soon'."),
        ({"patterns": [3]}, "Setting 'patterns' must be text; got 3."),
        ({"inner": {"share": "half"}}, "Setting 'inner.share' must be a number, 0 or more; got 'half'."),
        ({"inner": {"size": "0"}}, "Setting 'inner.size' must be more than 0; got 0."),
    ],
)
def test_what_does_not_fit_is_told_in_one_sentence(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InlayError, match=f"^{re.escape(sentence)}$"):
        build(Outer, data)


def test_whole_number_too_large_for_a_float_is_told() -> None:
    with pytest.raises(InlayError, match=r"^Setting 'count' must be a whole number, 0 or more; got 1000"):
        build(Outer, {"count": 10**400})


def test_dotted_paths_of_nested_objects() -> None:
    assert dotted_paths({"a": 1, "b": {"c": 2, "d": {"e": [3]}}}) == ["a", "b.c", "b.d.e"]
