import json
import os
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any, Literal

import pytest
from benchmarks.review_pictures import chromium, find_chromium
from playwright.sync_api import Browser, Locator, Page, expect

from inlay.errors import InlayError

SCRIPT = Path(sysconfig.get_path("scripts")) / "inlay"
DIALOGS = {"r": "rename", "m": "merge", "s": "split", "a": "all", "?": "help"}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
# The least contrast of a text with what is behind it.
CONTRASTS = """
() => {
  const light = (colour) => {
    const [red, green, blue] = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return colour === "rgba(0, 0, 0, 0)" ? behind(element.parentElement) : colour;
  };
  const contrasts = {};
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest(":disabled")) continue;
    const [less, more] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => a - b);
    contrasts[`${element.tagName}.${element.className}`] = (more + 0.05) / (less + 0.05);
  }
  return contrasts;
}
"""

# Keeps what is written on the map, and where.
NAMES_DRAWN = """
() => {
  window.drawn = [];
  const write = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, left, top) {
    window.drawn.push({ text, left, top, width: this.measureText(text).width });
    write.call(this, text, left, top);
  };
}
"""


def left_out() -> list[pytest.MarkDecorator]:
    """What says, in one line, that there is no browser for these tests; with CI=true they fail instead."""
    if find_chromium() is not None or os.environ.get("CI") == "true":
        return []
    return [pytest.mark.skip(reason="Chromium is missing; install it with `apt-get install chromium`")]


pytestmark = left_out()


def cards(page: Page) -> Locator:
    return page.locator(".card")


def names(page: Page) -> list[str]:
    return page.locator(".card h2").all_inner_texts()


def current(page: Page) -> str:
    return page.locator(".card.current h2").inner_text()


def press(page: Page, name: str, action: str) -> None:
    """Press a button of the card of a class."""
    card = cards(page).filter(has=page.get_by_role("heading", name=name, exact=True))
    card.get_by_role("button", name=action).click()


def told(page: Page, sentence: str | re.Pattern[str]) -> None:
    expect(page.locator("#news")).to_have_text(sentence)


def confirm(page: Page, dialog: str) -> None:
    page.locator(f"#{dialog} button.main").click()


def asked(page: Page, path: str) -> Any:
    return page.evaluate("(path) => fetch(path).then((answer) => answer.json())", path)


def predicted(run: Path, images: Path) -> list[str]:
    """Names that the command gives to images."""
    command = [str(SCRIPT), "predict", str(run), str(images), "--json", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return [json.loads(line)["name"] for line in said.stdout.splitlines()]


def test_decisions_are_kept_by_a_reload_and_shown_by_predict(page: Page, reviewed_run: Path, pictures: Path) -> None:
    first, second, third = names(page)
    press(page, first, "Rename")
    page.fill("#rename-name", "a <b>cat</b>")
    confirm(page, "rename")
    told(page, f"{first} is now called a <b>cat</b>.")
    assert names(page) == ["a <b>cat</b>", second, third]

    press(page, second, "Merge")
    page.select_option("#merge-into", label="a <b>cat</b>")
    confirm(page, "merge")
    told(page, f"{second} is now part of a <b>cat</b>.")
    assert names(page) == ["a <b>cat</b>", third]

    press(page, third, "Split")
    page.fill("#split-parts", "2")
    confirm(page, "split")
    told(page, f"{third} is now 2 classes.")
    cat, *parts = names(page)
    assert len(parts) == 2 and third not in parts
    assert current(page) == parts[0]

    press(page, parts[0], "Reject")
    told(page, f"{parts[0]} is rejected; undo brings it back.")
    assert names(page) == [cat, parts[1]]
    page.get_by_role("button", name="Undo").click()
    told(page, "The latest decision is taken back.")
    assert names(page) == [cat, *parts]
    assert current(page) == parts[0]

    before = asked(page, "api/state")
    page.reload()
    expect(cards(page)).to_have_count(3)
    assert names(page) == [cat, *parts]
    assert asked(page, "api/state") == before
    assert page.locator("#log li").last.inner_text() == f"taken back: {parts[0]} rejected"
    found = set(predicted(reviewed_run, pictures / "new"))
    assert found <= {"0", "1", "2", cat, *parts}
    assert cat in found and found & set(parts)


def test_every_key_does_what_its_button_does(page: Page) -> None:
    first, second, third = names(page)
    for key, name in {"j": second, "ArrowDown": third, "k": second, "ArrowUp": first}.items():
        page.keyboard.press(key)
        assert current(page) == name
    expect(cards(page).first).to_be_focused()
    page.keyboard.press("r")
    expect(page.locator("#rename-name")).to_be_focused()
    page.keyboard.type("juxm")
    page.keyboard.press("Enter")
    told(page, f"{first} is now called juxm.")
    assert names(page) == ["juxm", second, third]
    page.keyboard.press("m")
    page.keyboard.press("Enter")
    told(page, re.compile(r"^juxm is now part of .+\.$"))
    assert names(page) == [second, third]
    page.keyboard.press("u")
    expect(cards(page)).to_have_count(3)
    assert current(page) == "juxm"
    page.keyboard.press("s")
    page.keyboard.press("Enter")
    told(page, "juxm is now 2 classes.")
    page.keyboard.press("x")
    expect(cards(page)).to_have_count(3)
    for left in (4, 3):
        page.keyboard.press("u")
        expect(cards(page)).to_have_count(left)
    page.keyboard.press("u")
    expect(page.locator(".card h2").first).to_have_text(first)
    expect(page.locator("#undo")).to_be_disabled()
    assert names(page) == [first, second, third]


def test_escape_closes_every_window_and_decides_nothing(page: Page) -> None:
    before = asked(page, "api/state")
    for key, name in DIALOGS.items():
        page.keyboard.press(key)
        dialog = page.locator(f"#{name}")
        expect(dialog).to_be_visible()
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
    assert asked(page, "api/state") == before


def test_all_images_of_a_class_are_shown(page: Page) -> None:
    size = asked(page, "api/state")["classes"][0]["size"]
    page.keyboard.press("a")
    expect(page.locator("#all")).to_be_visible()
    pictures = page.locator("#all-images img")
    if size > 60:
        page.locator("#all-more").click()
    expect(pictures).to_have_count(size)
    expect(page.locator("#all-more")).to_be_hidden()
    pictures.last.scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelector('#all-images').lastChild.naturalWidth === 8")


def test_a_point_of_the_map_shows_its_image_and_class(page: Page) -> None:
    state, plane = asked(page, "api/state"), asked(page, "api/map")
    box = page.locator("#map").bounding_box()
    assert box is not None
    index = max(range(len(plane["points"])), key=lambda place: plane["points"][place][0])
    x, y = plane["points"][index]
    margin = 12
    left = margin + (box["width"] - 2 * margin) * (x + 1) / 2
    top = margin + (box["height"] - 2 * margin) * (1 - y) / 2
    page.locator("#map").click(position={"x": left, "y": top})
    (entry,) = [entry for entry in state["classes"] if entry["id"] == state["points"][index]]
    expect(page.locator("#picked-name")).to_have_text(f"Image {plane['images'][index]}, {entry['name']}")
    page.wait_for_function("() => document.querySelector('#picked-image').naturalWidth === 8")
    assert current(page) == entry["name"]


def test_names_on_the_map_do_not_cover_each_other(page: Page) -> None:
    page.evaluate(NAMES_DRAWN)
    page.keyboard.press("s")
    page.fill("#split-parts", "10")
    confirm(page, "split")
    told(page, re.compile("is now 10 classes"))
    page.evaluate("window.drawn = []")
    page.keyboard.press("j")
    drawn = page.evaluate("window.drawn")
    assert 1 < len(drawn) < len(names(page)), "more names fit than would show that some are left out"
    assert drawn[0]["text"] == current(page)
    assert not [
        (first["text"], second["text"])
        for place, first in enumerate(drawn)
        for second in drawn[:place]
        if abs(first["top"] - second["top"]) < 13
        and abs(first["left"] - second["left"]) < (first["width"] + second["width"]) / 2
    ]


def test_a_page_without_classes_says_how_to_get_them_back(page: Page) -> None:
    for left in (2, 1, 0):
        page.keyboard.press("x")
        expect(cards(page)).to_have_count(left)
    expect(page.locator("#classes")).to_contain_text("No discovered class is left")
    page.keyboard.press("u")
    expect(cards(page)).to_have_count(1)
    expect(page.locator("#classes")).not_to_contain_text("No discovered class is left")


def test_the_older_of_two_tabs_is_told_and_shows_what_the_other_decided(
    browser: Browser, page: Page, address: str
) -> None:
    # A tab of its own: the browser reports a refusal as an error.
    other = browser.new_page()
    other.goto(address)
    expect(cards(other)).to_have_count(3)
    page.keyboard.press("x")
    expect(cards(page)).to_have_count(2)
    other.keyboard.press("x")
    told(other, "The classes were changed on another page meanwhile; look at them and decide again.")
    expect(cards(other)).to_have_count(2)
    assert names(other) == names(page)
    other.close()


def test_a_wrong_token_and_a_page_of_others_are_refused(browser: Browser, page: Page, address: str) -> None:
    before = asked(page, "api/state")
    stranger = browser.new_page()
    token = address.split("/")[3]
    for wrong in (address.replace(token, ""), address.replace(token, token[::-1]), address.replace(token, token[:-1])):
        answer = stranger.goto(wrong)
        assert answer is not None and answer.status == 403
        assert "open the one that `inlay review` has printed" in stranger.locator("body").inner_text()
    stranger.goto("about:blank")
    decision = {"decision": {"decision": "reject", "id": before["classes"][0]["id"]}, "revision": before["revision"]}
    for options in ({}, {"method": "POST", "body": json.dumps(decision)}):
        for kind in ("text/plain", "application/json"):
            sent = {**options, "headers": {"Content-Type": kind}}
            ask = "([path, sent]) => fetch(path, sent).then(() => 'read', () => 'kept out')"
            assert stranger.evaluate(ask, [f"{address}api/{'decisions' if options else 'state'}", sent]) == "kept out"
    stranger.close()
    assert asked(page, "api/state") == before


def test_the_browser_is_told_to_load_nothing_from_elsewhere(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    blocked = page.evaluate(
        """() => new Promise((resolve) => {
          document.addEventListener("securitypolicyviolation", (event) => resolve(event.blockedURI));
          new Image().src = "http://127.0.0.2/picture.png";
        })"""
    )
    assert blocked == "http://127.0.0.2/picture.png"
    page.close()


def test_nothing_is_wider_than_the_page(page: Page) -> None:
    page.keyboard.press("r")
    page.fill("#rename-name", "W" * 100)
    confirm(page, "rename")
    expect(page.locator(".card h2").first).to_have_text("W" * 100)
    for width in (1280, 400, 320):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        for key, name in DIALOGS.items():
            dialog = page.locator(f"#{name}")
            page.keyboard.press(key)
            expect(dialog).to_be_visible()
            box = dialog.bounding_box()
            assert box is not None
            assert box["x"] >= 0 and box["x"] + box["width"] <= width
            assert dialog.evaluate("(dialog) => dialog.scrollWidth <= dialog.clientWidth")
            page.keyboard.press("Escape")
            expect(dialog).to_be_hidden()


def test_pictures_are_squares_of_one_size(page: Page) -> None:
    expect(page.locator(".card img")).to_have_count(48)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.card img')].every((image) => image.naturalWidth === 8)"
    )
    sizes = page.locator(".card img").evaluate_all(
        "(all) => all.map((image) => [Math.round(image.clientWidth), Math.round(image.clientHeight)])"
    )
    assert len({side for size in sizes for side in size}) == 1


def test_texts_stand_out_from_what_is_behind_them_by_day_and_by_night(page: Page) -> None:
    page.keyboard.press("x")
    told(page, re.compile("is rejected"))
    papers = set()
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 10
        assert min(contrasts.values()) >= 4.5, contrasts
    assert len(papers) == 2


def test_a_missing_browser_is_never_passed_over_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "false")
    (mark,) = left_out()
    assert mark.name == "skip" and "install it with" in mark.kwargs["reason"]
    monkeypatch.setenv("CI", "true")
    assert left_out() == []
    with (
        pytest.raises(InlayError, match=r"^Chromium is missing; install it with `apt-get install chromium`\.$"),
        chromium(),
    ):
        pass
