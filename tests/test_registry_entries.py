import pytest

from inlay.errors import InlayError
from inlay.registry_entries import ClassEntry, check_class_name

ADVICE = r"; write (at least one visible character|plain text|at most 100 characters)\.$"


@pytest.mark.parametrize("name", ["", " \t", "a\x00b", "a\x1b[31m", "a\u2028b", "\ud800", "x" * 101])
def test_names_that_cannot_be_shown(name: str) -> None:
    with pytest.raises(InlayError, match=ADVICE):
        check_class_name(name)


@pytest.mark.parametrize("name", ["x" * 100, "Höhle 3", "猫\u3000犬", "👩\u200d🔬", "<b>&"])
def test_names_of_all_languages_are_good(name: str) -> None:
    check_class_name(name)


def test_successors_are_read_from_the_status() -> None:
    statuses = ["active", "rejected", "withdrawn", "merged into 12", "split into 3, 14, 5"]
    entries = [ClassEntry(0, "cat", 1, None, "discovered", status) for status in statuses]
    assert [entry.successors for entry in entries] == [(), (), (), (12,), (3, 14, 5)]
    assert [entry.is_active for entry in entries] == [True, False, False, False, False]
    assert [entry.is_split for entry in entries] == [False, False, False, False, True]
