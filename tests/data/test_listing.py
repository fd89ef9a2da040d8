import itertools

import pytest

from inlay.data.listing import class_order


@pytest.mark.parametrize(
    "expected",
    [
        ["0", "1", "2", "9", "10", "11", "100"],
        ["007", "7", "08", "10"],
        ["0", "1", "10", "2", "cat"],
        ["-1", "10", "9"],
        ["1.5", "10", "9"],
        ["10", "9", "²"],
        ["10", "9", "٣"],
        ["n01443537", "n01629819", "n2"],
        ["", "10", "9"],
        ["1", "9" * 5000],
    ],
)
def test_whole_numbers_count_as_numbers_and_all_else_as_text(expected: list[str]) -> None:
    for mixed in itertools.islice(itertools.permutations(expected), 50):
        assert class_order(mixed) == expected


def test_no_classes() -> None:
    assert class_order([]) == []
