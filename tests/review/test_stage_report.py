import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import inlay
from inlay.decisions import Decision, Rename, Undo, replay
from inlay.engine.progress import QuietProgress
from inlay.errors import InlayError
from inlay.held_out import HeldOut
from inlay.review.cards import class_cards
from inlay.review.sections import contact_sheet
from inlay.review.stage import DecidedStage, open_stage
from inlay.review.stage_report import render_stage
from review.test_report import HOSTILE, Page
from tiny_digits import digits
from tiny_runs import SECOND, two_stages

FOUND: dict[str, Any] = {
    "pile": 1500,
    "known": 1000,
    "new": 480,
    "neither": 20,
    "new_share": {"share": 0.321, "low": 0.301, "high": 0.341},
    "error": 0.05,
    "classes": {"estimate": 3, "low": 2, "high": 5, "loose": True},
    "curve": [[2, -0.5], [3, 0.25], [4, 0.0]],
    "forgetting": {"drop": 0.0234, "standard_error": 0.004, "uncorrected": 0.03},
}


@pytest.fixture(scope="module")
def stage(finished: Path) -> DecidedStage:
    knowledge = inlay.load(finished, device="cpu").knowledge
    return open_stage(knowledge, knowledge, [], None, QuietProgress())


def _with_found(stage: DecidedStage, found: dict[str, Any] | None) -> DecidedStage:
    before = replace(stage.before, record=replace(stage.before.record, found=found))
    return DecidedStage(before, before, [], stage.images, stage.features)


def test_the_report_has_what_the_page_has(stage: DecidedStage) -> None:
    html = render_stage(stage, "shop.inlay")
    page = Page(html)
    assert "shop.inlay, stage 1" in page.words
    for card in class_cards(stage):
        assert card.nearest_old is not None and card.nearest_new is not None
        assert card.entry.name in page.words
        assert (
            f"{card.entry.size} images · nearest old class: {card.nearest_old.name} · nearest new class: "
            f"{card.nearest_new.name}"
        ) in page.words
        for kind in ("Typical", "Borderline"):
            assert f"{kind} images of {card.entry.name}" in page.values("alt")
    assert "Map of 90 images" in page.words
    assert sum(path.count("h0") for path in page.values("d")) == 90


def test_measured_forgetting_is_not_called_estimated(stage: DecidedStage) -> None:
    kept = HeldOut(torch.zeros(12, stage.features.shape[1]), torch.zeros(12, dtype=torch.int64))
    measured = _with_found(stage, FOUND)
    measured.before = replace(measured.before, reference=kept)
    told = " ".join(Page(render_stage(measured, "")).words)
    assert "This was measured on the features of 12 images of base classes that were kept out of training" in told
    assert "This is estimated" not in told
    assert "points of accuracy, measured" in told
    moved = _with_found(stage, FOUND)
    moved.before = replace(moved.before, reference=replace(kept, exact=False))
    told = " ".join(Page(render_stage(moved, "")).words)
    assert "This is estimated on the features of 12 images of base classes that were kept out of training" in told
    assert "points of accuracy, estimated" in told


def test_one_picture_is_as_wide_as_one_of_a_full_row() -> None:
    pictures = torch.zeros(9, 3, 8, 8, dtype=torch.uint8)
    widths = [Page(contact_sheet(pictures[:count], "", 4)).values("style") for count in (1, 3, 4, 9)]
    assert widths == [["width:25%"], ["width:75%"], [], []]


def test_the_report_needs_nothing_else(stage: DecidedStage) -> None:
    page = Page(render_stage(_with_found(stage, FOUND), "shop.inlay"))
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert all(source.startswith("data:image/png;base64,") for source in page.values("src"))
    assert page.values("href") == []


def test_what_was_found_out_about_the_pile_is_told(stage: DecidedStage) -> None:
    told = " ".join(Page(render_stage(_with_found(stage, FOUND), "")).words)
    for words in (
        "estimated, between 2 and 5",
        "About 3, between 2 and 5. The images do not tell the number well.",
        "Score of each number of classes; 3 fits best, between 2 and 5",
        "Of 1,500 images only the new ones were learned. About 5.0% of known images",
        "Neither 20",
        "32.1%, between 30.1% and 34.1%",
        "falls by about 2.3 points",
        "standard error is 0.4 points",
        "Old classes -2.3 points of accuracy, estimated",
    ):
        assert words in told
    gained = render_stage(_with_found(stage, FOUND | {"forgetting": FOUND["forgetting"] | {"drop": -0.01}}), "")
    assert "rises by about 1.0 points" in gained


def test_what_was_not_asked_is_not_told(stage: DecidedStage) -> None:
    html = render_stage(_with_found(stage, None), "")
    assert re.findall("<h2>(.*?)</h2>", html) == ["What was found", "Map", "About the stage"]
    assert "as many as were asked for" in html


def test_names_are_text_whatever_they_are(stage: DecidedStage) -> None:
    taken: list[Decision] = [Rename(3, HOSTILE), Rename(4, "other"), Undo()]
    after = replay(stage.before, taken)
    page = Page(render_stage(DecidedStage(stage.before, after, taken, stage.images, stage.features), HOSTILE))
    assert "script" not in page.tags
    assert HOSTILE in page.words and f"{HOSTILE}, stage 1" in page.words
    first, second = (entry.name for entry in stage.before.registry.of_stage(1)[:2])
    for decision in (f"{first} renamed to {HOSTILE}", f"{second} renamed to other"):
        assert decision in page.words
    assert f"taken back: {second} renamed to other" in page.words


def test_a_learner_in_memory_writes_a_report_where_it_is_told(tmp_path: Path) -> None:
    learner = two_stages()
    file = learner.report(tmp_path / "a.html", images=digits(SECOND))
    assert file == tmp_path / "a.html"
    assert "<h1>Stage 2</h1>" in file.read_text()
    with pytest.raises(InlayError, match="is there already"):
        learner.report(file, images=digits(SECOND))
    with pytest.raises(InlayError, match="in memory only; write where the report is to go"):
        learner.report(images=digits(SECOND))
