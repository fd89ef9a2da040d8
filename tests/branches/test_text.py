import pytest

from inlay.branches.text import aligned


def test_columns_start_at_the_same_place() -> None:
    lines = aligned([("layer", "is", "why"), ("a", "Conv2d 3→4", "x"), ("stem.conv", "", "long reason")]).split("\n")
    assert lines == [
        "layer      is          why",
        "─────────  ──────────  ───────────",
        "a          Conv2d 3→4  x",
        "stem.conv              long reason",
    ]


def test_a_header_alone_is_a_table() -> None:
    assert aligned([("a", "bc")]) == "a  bc\n─  ──"


def test_rows_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        aligned([("a", "b"), ("c", "d", "e")])
