import hashlib
import json
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

import inlay

REQUESTS = 1000
DECISIONS = [
    {"decision": "rename", "id": 3, "name": "cat"},
    {"decision": "merge", "ids": [4, 5], "into": 3},
    {"decision": "split", "id": 3, "parts": 2},
    {"decision": "split", "id": 4, "labels": [0, 1, 0, 1]},
    {"decision": "reject", "id": 5},
    {"decision": "undo"},
]
PATHS = [b"api/images/7", b"api/classes/3/images?first=2", b"api/state", b"api/decisions", b"page.js"]
PIECES = [
    b"",
    b"\x00",
    b"\xff",
    b"..",
    b"/",
    b"%2e%2e%2f",
    b"-1",
    b"9" * 30,
    b"NaN",
    b"null",
    b"true",
    b"[",
    b"{",
    b'"',
]


def _mutated(whole: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 3)):
        first = chance.randint(0, len(whole))
        last = min(len(whole), first + chance.randint(0, 4))
        whole = whole[:first] + chance.choice(PIECES) + whole[last:]
    return whole


def _content(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_mutated_requests_never_crash_the_page_and_touch_nothing_outside_the_run(
    browser: Any, run: Path, pictures: Path, tmp_path: Path
) -> None:
    chance = random.Random(0)
    (tmp_path / "beside").write_text("private")
    outside = [_content(pictures), _content(tmp_path / "beside")]
    statuses = set()
    for number in range(REQUESTS):
        if number % 2:
            revision = browser.state()["revision"] if number % 20 == 1 else 0
            body = json.dumps({"decision": chance.choice(DECISIONS), "revision": revision}).encode()
            answer = browser.sent(_mutated(body, chance))
        else:
            path = _mutated(chance.choice(PATHS), chance)
            answer = browser.client.get("/a-token-for-tests/" + quote_from_bytes(path, safe="/?=&%"))
        statuses.add(answer.status_code)
        assert answer.status_code < 500
        assert answer.status_code == 200 or answer.json()["error"].endswith(".")
    assert {200, 400, 404} <= statuses
    assert [_content(pictures), _content(tmp_path / "beside")] == outside
    assert {entry.name for entry in tmp_path.iterdir()} == {"beside", "digits.inlay"}
    assert "private" not in "".join(file.read_text("latin-1") for file in run.rglob("*.json"))
    assert len(inlay.load(run, device="cpu").predict(pictures / "new")) == 90
