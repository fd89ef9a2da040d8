"""Make docs/images/review-1280.png and review-400.png: the review page after a stage on crops of two photographs.

    python -m benchmarks.review_pictures [--folder FOLDER]

The photographs are those that scikit-learn ships. Sky, trees and shade are learned with labels; lake, roof, balcony and
petals are found. Then two classes are named in a real browser, and the page is photographed.
"""

import argparse
import io
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from sklearn.datasets import load_sample_image

from inlay import Learner
from inlay.errors import InlayError

__all__ = ["chromium", "find_chromium", "main", "reviewed", "write_crops"]

IMAGES = Path(__file__).parent.parent / "docs" / "images"
SCRIPT = Path(sysconfig.get_path("scripts")) / "inlay"
HEIGHTS = {1280: 960, 400: 1240}
Parts = dict[str, list[tuple[str, tuple[int, int, int, int]]]]
# Photograph and rectangles (left, top, right, bottom) whose crops show one thing.
BASE: Parts = {
    "sky": [("china.jpg", (330, 0, 640, 190))],
    "trees": [("china.jpg", (20, 345, 260, 427)), ("china.jpg", (400, 310, 560, 427))],
    "shade": [("flower.jpg", (0, 60, 165, 330)), ("flower.jpg", (450, 60, 640, 427))],
}
NEW: Parts = {
    "lake": [("china.jpg", (350, 205, 545, 290))],
    "roof": [("china.jpg", (125, 52, 295, 132))],
    "balcony": [("china.jpg", (92, 183, 320, 247)), ("china.jpg", (85, 275, 345, 345))],
    "petals": [("flower.jpg", (195, 110, 420, 345))],
}
SETTINGS = {
    "base.training.epochs": 20,
    "base.training.batch": 40,
    "training.epochs": 20,
    "training.learning_rate": 0.01,
    "training.batch": 40,
}


def find_chromium() -> str | None:
    """Return the path of the Chromium of this system, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the Chromium of this system.

    Raises:
        InlayError: If there is none.
    """
    path = find_chromium()
    if path is None:
        raise InlayError("Chromium is missing; install it with `apt-get install chromium`.")
    quiet = ["--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    # Its sandbox refuses to start as root.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*quiet, "--disable-sync", *sandbox])
        yield browser
        browser.close()


@contextmanager
def reviewed(run: Path, images: Path) -> Iterator[str]:
    """Start `inlay review` as a process of its own, and stop it afterwards as Ctrl-C does.

    Args:
        run: Folder of the run.
        images: Folder of the images of its latest stage.

    Yields:
        Address of the page.
    """
    command = [str(SCRIPT), "review", str(run), "--images", str(images), "--no-browser", "--device", "cpu"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", said)
            if address is None:
                raise InlayError(f"`inlay review` did not say where its page is; run it by hand ({said!r}).")
            yield address.group()
        finally:
            process.send_signal(signal.SIGINT)


def write_crops(pattern: str, parts: Parts, count: int) -> None:
    """Write square crops of photographs, `count` of each part, to files named by a pattern of part and number."""
    chance = np.random.default_rng(0)
    for name, places in parts.items():
        for number in range(count):
            photograph, (left, top, right, bottom) = places[number % len(places)]
            side = int(chance.integers(52, min(88, bottom - top, right - left) + 1))
            x, y = int(chance.integers(left, right - side + 1)), int(chance.integers(top, bottom - side + 1))
            file = Path(pattern.format(name, number))
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(load_sample_image(photograph)[y : y + side, x : x + side]).save(file, quality=92)


def learn(folder: Path) -> None:
    """Learn the base classes and find the others; make `photos.inlay` beside the folders of crops."""
    write_crops(f"{folder}/labelled/{{}}/{{:03d}}.jpg", BASE, 60)
    write_crops(f"{folder}/pile/{{}}-{{:03d}}.jpg", NEW, 40)
    learner = Learner("resnet8", settings=SETTINGS, size=32, device="cpu", run=folder / "photos.inlay")
    learner.fit(folder / "labelled")
    learner.discover(folder / "pile", classes=len(NEW))


def rename(page: Page, old: str, new: str) -> None:
    """Give a class a name, as a person does."""
    page.locator(".card").filter(has=page.get_by_role("heading", name=old, exact=True)).focus()
    page.keyboard.press("r")
    page.fill("#rename-name", new)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=new, exact=True).wait_for()


def name_classes(page: Page) -> None:
    """Name lake and petals, whose classes are those of most of their images."""
    state = page.evaluate("fetch('api/state').then((answer) => answer.json())")
    for what in ("lake", "petals"):
        shown = {entry["name"]: sum(what in image["name"] for image in entry["typical"]) for entry in state["classes"]}
        rename(page, max(shown, key=lambda name: shown[name]), what)


def photograph(page: Page, width: int) -> None:
    """Write what is seen of the page at a width, with few colours so that the file is small."""
    page.set_viewport_size({"width": width, "height": HEIGHTS[width]})
    page.reload()
    page.wait_for_load_state("networkidle")
    seen = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    seen.quantize(256, kmeans=2, dither=Image.Dither.NONE).save(IMAGES / f"review-{width}.png", optimize=True)


def main() -> None:
    """Learn, review, and write both pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where photos.inlay is kept, or made if it is not there yet")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        folder = options.folder or Path(empty)
        run = folder / "photos.inlay"
        if not run.exists():
            learn(folder)
        with reviewed(run, folder / "pile") as address, chromium() as browser:
            page = browser.new_page()
            page.goto(address)
            name_classes(page)
            for width in HEIGHTS:
                photograph(page, width)


if __name__ == "__main__":
    main()
