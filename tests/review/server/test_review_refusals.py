from typing import Any

import pytest


@pytest.mark.parametrize(
    "decision",
    [
        {"decision": "rename", "id": 99, "name": "cat"},
        {"decision": "rename", "id": -1, "name": "cat"},
        {"decision": "rename", "id": "3", "name": "cat"},
        {"decision": "rename", "id": 3, "name": ""},
        {"decision": "rename", "id": 3, "name": "a\nb"},
        {"decision": "rename", "id": 3, "name": "\ud800"},
        {"decision": "rename", "id": 3, "name": "0"},
        {"decision": "rename", "id": 3, "name": "x" * 101},
        {"decision": "merge", "ids": [0], "into": 3},
        {"decision": "merge", "ids": [3], "into": 3},
        {"decision": "merge", "ids": [], "into": 3},
        {"decision": "merge", "ids": [10**40], "into": 3},
        {"decision": "split", "id": 0, "parts": 2},
        {"decision": "split", "id": 99, "parts": 2},
        {"decision": "split", "id": True, "parts": 2},
        {"decision": "split", "id": 3, "parts": 1},
        {"decision": "split", "id": 3, "parts": 11},
        {"decision": "split", "id": 3, "parts": "2"},
        {"decision": "split", "id": 3, "labels": [0, 1, 0]},
        {"decision": "split", "id": 3, "labels": [0, 1, 10**40]},
        {"decision": "split", "parts": 2},
        {"decision": "reject", "id": 1},
        {"decision": "reject", "id": 3, "path": "../../etc/passwd"},
        {"decision": "undo"},
        {"decision": "explode", "id": 3},
        {"decision": ["undo"]},
        {},
        [],
        None,
        "undo",
    ],
)
def test_a_wrong_decision_is_refused_in_one_sentence_and_nothing_is_written(untouched: Any, decision: object) -> None:
    sentence = untouched.refused(decision)
    assert sentence.endswith(".")
    assert "\n" not in sentence
