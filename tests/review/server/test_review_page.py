import io
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import inlay
from inlay.decided import decided
from inlay.engine.progress import QuietProgress
from inlay.errors import InlayError
from inlay.review.server.session import Session, open_session
from inlay.run_folder import RunFolder

Review = Callable[[], AbstractContextManager[Session]]
Browse = Callable[[Session], Any]


def predicted(run: Path, images: Path) -> list[str]:
    """Names that the run gives to images once its decisions are followed."""
    learner = inlay.load(run, device="cpu")
    assert learner._history.knowledge is not None
    learner._history.knowledge = decided(RunFolder.open(run), learner._history.knowledge)
    return [found.name for found in learner.predict(images)]


def test_the_page_shows_every_discovered_class(browser: Any, run: Path) -> None:
    state, record = browser.state(), inlay.load(run).stages[1]
    assert (state["run"], state["stage"], state["revision"]) == ("digits.inlay", 1, 0)
    assert (state["images"], state["found"], state["can_undo"]) == (90, 90, False)
    assert [entry["name"] for entry in state["old"]] == ["0", "1", "2"]
    for number, entry in enumerate(state["classes"]):
        members = {place for place, cluster in enumerate(record.clusters) if cluster == number}
        assert (entry["id"], entry["size"]) == (3 + number, len(members))
        for kind in ("typical", "doubtful"):
            shown = [picture["image"] for picture in entry[kind]]
            assert len(shown) == min(8, len(members))
            assert set(shown) <= members
        assert entry["nearest_old"]["id"] in (0, 1, 2)
        assert entry["nearest_new"]["id"] in {3, 4, 5} - {entry["id"]}


def test_the_map_has_a_point_and_a_class_for_each_image(browser: Any, run: Path) -> None:
    plane, state = browser.get("api/map"), browser.state()
    assert plane["images"] == list(range(90))
    assert torch.tensor(plane["points"]).abs().max() == 1
    assert state["points"] == [3 + cluster for cluster in inlay.load(run).stages[1].clusters]


def test_images_of_a_class_come_in_pages(browser: Any, session: Session) -> None:
    size = len(session.members[3])
    page = browser.get("api/classes/3/images")
    rest = browser.get("api/classes/3/images?first=60")
    assert page["all"] == size
    assert {picture["image"] for picture in page["images"] + rest["images"]} == set(session.members[3])
    assert page["images"][:8] == browser.state()["classes"][0]["typical"]


def test_pictures_are_served(browser: Any) -> None:
    answer = browser.client.get("/a-token-for-tests/api/images/5")
    assert answer.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(answer.content)) as shown:
        assert shown.size == (8, 8)


def test_rename_shows_in_predictions_and_after_a_reload(browser: Any, run: Path, pictures: Path) -> None:
    old = predicted(run, pictures / "new")
    name = browser.state()["classes"][1]["name"]
    state = browser.decide({"decision": "rename", "id": 4, "name": "a cat"})
    assert state["classes"][1]["name"] == "a cat"
    assert state["log"] == [f"{name} renamed to a cat"]
    assert browser.state() == state
    assert predicted(run, pictures / "new") == ["a cat" if found == name else found for found in old]


def test_merge_split_reject_and_undo_show_in_predictions(browser: Any, run: Path, pictures: Path) -> None:
    first = predicted(run, pictures / "new")
    names = {entry["id"]: entry["name"] for entry in browser.state()["classes"]}
    merged = browser.decide({"decision": "merge", "ids": [4], "into": 3})
    assert [entry["id"] for entry in merged["classes"]] == [3, 5]
    assert names[4] not in predicted(run, pictures / "new")
    split = browser.decide({"decision": "split", "id": 3, "parts": 3})
    assert [entry["id"] for entry in split["classes"]] == [5, 6, 7, 8]
    parts = {entry["name"] for entry in split["classes"][1:]}
    assert names[3] not in predicted(run, pictures / "new")
    assert len(parts & set(predicted(run, pictures / "new"))) > 1
    rejected = browser.decide({"decision": "reject", "id": 5})
    assert [entry["id"] for entry in rejected["classes"]] == [6, 7, 8]
    assert names[5] not in predicted(run, pictures / "new")
    for _ in range(3):
        state = browser.decide({"decision": "undo"})
    assert [entry["id"] for entry in state["classes"]] == [3, 4, 5]
    assert not state["can_undo"]
    assert [text.startswith("taken back: ") for text in state["log"]] == [False] * 3 + [True] * 3
    assert state["log"][3:] == [f"taken back: {text}" for text in state["log"][2::-1]]
    assert predicted(run, pictures / "new") == first


def test_the_log_has_the_names_of_its_time(browser: Any) -> None:
    third, fourth, fifth = (entry["name"] for entry in browser.state()["classes"])
    browser.decide({"decision": "rename", "id": 3, "name": "cat"})
    browser.decide({"decision": "merge", "ids": [4, 5], "into": 3})
    browser.decide({"decision": "rename", "id": 3, "name": "dog"})
    browser.decide({"decision": "undo"})
    assert browser.decide({"decision": "rename", "id": 3, "name": "cow"})["log"] == [
        f"{third} renamed to cat",
        f"{fourth} and {fifth} merged into cat",
        "cat renamed to dog",
        "taken back: cat renamed to dog",
        "cat renamed to cow",
    ]


def test_sizes_and_points_follow_decisions(browser: Any) -> None:
    browser.decide({"decision": "merge", "ids": [4], "into": 3})
    browser.decide({"decision": "split", "id": 3, "parts": 2})
    state = browser.decide({"decision": "reject", "id": 5})
    for entry in state["classes"]:
        assert state["points"].count(entry["id"]) == entry["size"]
    assert sum(entry["size"] for entry in state["classes"]) + state["points"].count(None) == 90


def test_another_start_shows_the_same_state_and_goes_on(review: Review, browse: Browse) -> None:
    with review() as session:
        browse(session).decide({"decision": "merge", "ids": [5], "into": 4})
        state = browse(session).decide({"decision": "split", "id": 4, "parts": 2})
        weight = session.after.head.state_dict()["weight"]
    with review() as session:
        assert browse(session).state() == state
        assert torch.equal(session.after.head.state_dict()["weight"], weight)
        back = browse(session).decide({"decision": "undo"})
        assert [entry["id"] for entry in back["classes"]] == [3, 4]


def test_a_second_page_is_told_that_classes_have_changed(browser: Any, session: Session, browse: Browse) -> None:
    other = browse(session)
    seen = other.state()["revision"]
    browser.decide({"decision": "rename", "id": 3, "name": "cat"})
    answer = other.sent(json.dumps({"decision": {"decision": "rename", "id": 3, "name": "dog"}, "revision": seen}))
    assert answer.status_code == 409
    assert re.fullmatch(r"The classes were changed on another page meanwhile; .*\.", answer.json()["error"])
    assert other.state()["classes"][0]["name"] == "cat"


def test_a_second_review_and_other_writers_are_refused_and_readers_are_not(
    session: Session, review: Review, run: Path, pictures: Path
) -> None:
    told = r"^Another inlay process is writing to .*; wait for it to end, or stop it\.$"
    with pytest.raises(InlayError, match=told), review():
        pass
    with pytest.raises(InlayError, match="Another inlay process is writing"):
        inlay.load(run).discover(pictures / "base", classes=2)
    assert len(inlay.load(run).predict(pictures / "new")) == 90


def test_the_name_that_a_class_has_is_no_decision(browser: Any) -> None:
    before = browser.state()
    name = before["classes"][0]["name"]
    assert browser.decide({"decision": "rename", "id": 3, "name": name}) == before


def test_a_class_with_images_of_another_stage_cannot_be_split(run: Path, pictures: Path, browse: Browse) -> None:
    inlay.load(run, device="cpu").discover(pictures / "base", classes=2)
    with open_session(run, str(pictures / "base"), torch.device("cpu"), QuietProgress()) as session:
        page = browse(session)
        assert page.ids() == [6, 7]
        page.decide({"decision": "merge", "ids": [6], "into": 5})
        assert "The class 'new-1.3' cannot be split" in page.refused({"decision": "split", "id": 5, "parts": 2})
        count = session.after.registry.of_stage(1)[2].size
        assert count is not None
        labels = [number % 2 for number in range(count)]
        assert "The class 'new-1.3' was not found in stage 2" in page.refused(
            {"decision": "split", "id": 5, "labels": labels}
        )
        page.decide({"decision": "merge", "ids": [4], "into": 7})
        assert not session.may_split(7)
