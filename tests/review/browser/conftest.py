import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from benchmarks.review_pictures import chromium, reviewed
from playwright.sync_api import Browser, Page, ViewportSize, expect

WIDE: ViewportSize = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=30_000)
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def reviewed_run(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the labelled classes 0 to 2 and three discovered ones, which the tests of a module decide about."""
    return Path(shutil.copytree(finished, tmp_path_factory.mktemp("reviewed") / "digits.inlay"))


@pytest.fixture(scope="module")
def address(browser: Browser, reviewed_run: Path, pictures: Path) -> Iterator[str]:
    """Address of the page of `inlay review`, a process of its own."""
    with reviewed(reviewed_run, pictures / "new") as served:
        yield served


@pytest.fixture
def open_page(browser: Browser, address: str) -> Iterator[Callable[[], Page]]:
    """Opens the review in a new tab; none of them may ask another host for anything, or report an error."""
    context = browser.new_context(viewport=WIDE)
    hosts: set[str] = set()
    wrong: list[str] = []
    context.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    context.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    context.on("weberror", lambda error: wrong.append(str(error.error)))

    def opened() -> Page:
        page = context.new_page()
        page.goto(address)
        expect(page.locator("#title")).to_have_text("digits.inlay, stage 1")
        return page

    yield opened
    context.close()
    assert hosts == {urlsplit(address).netloc}
    assert wrong == []


@pytest.fixture
def page(open_page: Callable[[], Page]) -> Page:
    """The page with no decision standing."""
    page = open_page()
    undo = page.locator("#undo")
    if undo.is_enabled():
        while undo.is_enabled():
            count = page.locator("#log-count").inner_text()
            undo.click()
            expect(page.locator("#log-count")).not_to_have_text(count)
        page.reload()
        expect(page.locator(".card").first).to_have_class("card current")
    return page
