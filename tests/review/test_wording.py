import pytest

from inlay.review.wording import counted, duration, joined, percent


@pytest.mark.parametrize(("fraction", "text"), [(None, "–"), (0.0, "0.0%"), (0.12345, "12.3%"), (1, "100.0%")])
def test_percent(fraction: float | None, text: str) -> None:
    assert percent(fraction) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (61.4, "1 min 1 s"),
        (3599.7, "1 h 0 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_counted_uses_the_singular_for_one_alone() -> None:
    assert [counted(n, "class", "classes") for n in (0, 1, 1200)] == ["0 classes", "1 class", "1,200 classes"]


def test_joined_counts_names_past_the_limit() -> None:
    assert joined(["a", "b"], 2) == "a, b"
    assert joined(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert joined([], 2) == ""
