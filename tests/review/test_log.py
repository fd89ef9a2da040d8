from inlay.registry import ClassRegistry
from inlay.review.log import decision_log


def test_decisions_are_told_with_the_names_of_their_time() -> None:
    after = ClassRegistry()
    after.add(["old"], stage=0, kind="labelled")
    after.add(4, stage=1, kind="discovered")
    before = ClassRegistry.from_json(after.to_json())
    assert decision_log(before, after) == []
    after.rename(1, "cat")
    after.merge([2, 3], into=1)
    after.split(4, 2)
    after.undo()
    after.reject(1)
    assert decision_log(before, after) == [
        "new-1.1 renamed to cat",
        "new-1.2 and new-1.3 merged into cat",
        "new-1.4 split into new-1.4.1 and new-1.4.2",
        "taken back: new-1.4 split into new-1.4.1 and new-1.4.2",
        "cat rejected",
    ]
