import pytest

from inlay.decisions import Decision, Merge, Reject, Rename, Split, Undo
from inlay.review.server.members import members_after

BEFORE = {3: (0, 2, 4), 4: (1, 5), 5: (3,)}


@pytest.mark.parametrize(
    ("decisions", "after"),
    [
        ([], BEFORE),
        ([Rename(3, "cat")], BEFORE),
        ([Merge((4, 5), 3)], {3: (0, 2, 4, 1, 5, 3)}),
        ([Merge((4, 3, 4), 3)], {3: (0, 2, 4, 1, 5), 5: (3,)}),
        ([Merge((4,), 0)], {0: (1, 5), 3: (0, 2, 4), 5: (3,)}),
        ([Reject(4)], {3: (0, 2, 4), 5: (3,)}),
        ([Split(3, (1, 0, 1))], {4: (1, 5), 5: (3,), 6: (2,), 7: (0, 4)}),
        ([Split(3, (1, 0, 1)), Undo()], BEFORE),
        ([Split(3, (1, 0, 1)), Undo(), Split(4, (0, 1))], {3: (0, 2, 4), 5: (3,), 8: (1,), 9: (5,)}),
        ([Merge((4,), 5), Split(5, (0, 0, 1)), Reject(7)], {3: (0, 2, 4), 6: (3, 1)}),
        ([Reject(3), Reject(4), Undo(), Undo()], BEFORE),
    ],
)
def test_images_follow_decisions(decisions: list[Decision], after: dict[int, tuple[int, ...]]) -> None:
    assert members_after(BEFORE, decisions, classes=6) == after
