"""Make docs/images/own-images-*.png: the guide to own images, walked through on photographs.

    python -m benchmarks.walk_pictures [--folder FOLDER]

The photographs are crops of those that scikit-learn and scikit-image ship, as in the tests of the guide.
"""

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.review_pictures import chromium
from PIL import Image, ImageDraw, ImageFont, ImageOps

import inlay

__all__ = ["main", "sheet"]

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
SCRIPT = Path(sysconfig.get_path("scripts")) / "inlay"
SIDE, GAP, NAMES = 56, 4, 92
COLUMNS = 9


def sheet(rows: Mapping[str, Sequence[Path]]) -> Image.Image:
    """Set images side by side, one row per name, as they are shown to the network."""
    width = NAMES + COLUMNS * (SIDE + GAP)
    page = Image.new("RGB", (width, GAP + len(rows) * (SIDE + GAP)), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(13)
    for row, (name, files) in enumerate(rows.items()):
        top = GAP + row * (SIDE + GAP)
        pen.text((GAP, top + SIDE // 2), name, fill="black", font=font, anchor="lm")
        for column, file in enumerate(files[:COLUMNS]):
            upright = ImageOps.exif_transpose(Image.open(file)).convert("RGB")
            page.paste(ImageOps.fit(upright, (SIDE, SIDE)), (NAMES + column * (SIDE + GAP), top))
    return page


def main() -> None:
    """Walk, and write the pictures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path, help="Where to walk; a temporary folder by default.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = parser.parse_args().folder or Path(temporary)
        _walked(folder)
        month = folder / "photos/2026-10"
        _save(sheet({"2026-10": sorted(month.iterdir())[:COLUMNS]} | _labelled(folder)), "own-images-photos.png")
        _save(sheet(_found(folder / "shop.inlay", month)), "own-images-found.png")
        _photograph_page(folder / "shop.inlay.stage-1.html", IMAGES / "own-images-report.png")


def _walked(folder: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tests/walk/photographs.py", folder], check=True)
    (folder / "photos/2026-10/IMG_9999.jpg").unlink()
    for command in ("fit photos/labelled --out shop.inlay", "discover shop.inlay photos/2026-10"):
        subprocess.run([SCRIPT, *command.split()], check=True, cwd=folder)


def _labelled(folder: Path) -> dict[str, list[Path]]:
    return {kind.name: sorted(kind.iterdir()) for kind in sorted((folder / "photos/labelled").iterdir())}


def _found(run: Path, month: Path) -> dict[str, list[Path]]:
    entries = inlay.load(run).classes.of_stage(1)
    return {entry.name: [month / medoid.path for medoid in entry.medoids] for entry in entries}


def _photograph_page(page: Path, target: Path) -> None:
    with chromium() as browser:
        view = browser.new_page(viewport={"width": 900, "height": 760})
        view.goto(page.resolve().as_uri())
        view.screenshot(path=target)
    _save(Image.open(target).convert("RGB"), target.name)


def _save(picture: Image.Image, name: str) -> None:
    # Shares of colours that are few, such as those of the dots beside names, are kept by k-means.
    picture.quantize(256, kmeans=2, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)


if __name__ == "__main__":
    main()
