"""Photographs that lie in scikit-learn and scikit-image, cut into folders as a shop might keep them.

Each photograph is a kind, and its instances are random crops of it. `python tests/walk/photographs.py FOLDER` writes
the folders of the guide.
"""

import sys
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

__all__ = ["LABELLED", "NOVEMBER", "OCTOBER", "Photographs", "write_photographs"]

LABELLED = ("astronaut", "cat", "china", "coffee", "flower")
OCTOBER = ("galaxies", "motorcycle", "tissue")
NOVEMBER = ("retina", "rocket")

_FILES = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "cat": ("skimage", "data/chelsea.png"),
    "china": ("sklearn", "datasets/images/china.jpg"),
    "coffee": ("skimage", "data/coffee.png"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "galaxies": ("skimage", "data/hubble_deep_field.jpg"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "retina": ("skimage", "data/retina.jpg"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "tissue": ("skimage", "data/ihc.png"),
}
# Height and width of the files, so that they have to be scaled and cropped when they are read.
_SIZES = ((48, 64), (64, 64), (64, 96), (90, 60), (80, 80), (52, 70))
_SHARE = (0.45, 0.75)
_LABELLED_EACH, _NEW_EACH, _OLD_EACH, _TO_NAME_EACH, _SORTED_EACH = 50, 27, 6, 5, 12
# What a camera that is held upright writes: the pixels lie on their side, and this says so.
_TURNED_RIGHT = 6


@dataclass
class Photographs:
    """Folders of crops.

    Attributes:
        folder: Holds `photos/labelled`, `photos/2026-10`, `photos/2026-11`, `new` and `sorted`.
        kinds: The kind of each unlabelled file, by its path below the folder.
        broken: A file that is no image.
    """

    folder: Path
    kinds: dict[str, str] = field(default_factory=dict)
    broken: Path = Path()

    def of(self, part: str) -> dict[str, str]:
        """The kinds of the files of a folder, such as "new"."""
        return {path: kind for path, kind in self.kinds.items() if Path(path).parent == Path(part)}


def write_photographs(folder: Path, seed: int = 0) -> Photographs:
    """Write labelled kinds, two months of unlabelled photographs with old and new kinds, and new ones to name.

    A few photographs of the new kinds of the second month are there with labels as well.
    """
    randomness = np.random.default_rng(seed)
    written = Photographs(folder)
    for kind in LABELLED:
        for number in range(_LABELLED_EACH):
            _write(folder / "photos/labelled" / kind / _name(number), _crop(kind, randomness), number)
    for month, new, old in (("2026-10", OCTOBER, LABELLED), ("2026-11", NOVEMBER, (*LABELLED, *OCTOBER))):
        kinds = [*(kind for kind in new for _ in range(_NEW_EACH)), *(kind for kind in old for _ in range(_OLD_EACH))]
        for number, kind in enumerate(randomness.permutation(kinds).tolist()):
            path = Path("photos", month, f"IMG_{number:04d}{Path(_name(number)).suffix}")
            _write(folder / path, _crop(kind, randomness), number)
            written.kinds[str(path)] = kind
    for kind, number in (
        (kind, number) for kind in (*LABELLED, *OCTOBER, *NOVEMBER) for number in range(_TO_NAME_EACH)
    ):
        path = Path("new", f"{len(written.of('new')):03d}.jpg")
        _write(folder / path, _crop(kind, randomness), number)
        written.kinds[str(path)] = kind
    for kind in NOVEMBER:
        for number in range(_SORTED_EACH):
            _write(folder / "sorted" / kind / _name(number), _crop(kind, randomness), number)
    written.broken = folder / "photos/2026-10/IMG_9999.jpg"
    written.broken.write_bytes((folder / next(iter(written.of("new")))).read_bytes()[:200])
    return written


def _name(number: int) -> str:
    return f"{number:03d}.{'png' if number % 4 == 3 else 'jpg'}"


def _crop(kind: str, randomness: np.random.Generator) -> Image.Image:
    photograph = _photograph(kind)
    height, width = _SIZES[randomness.integers(len(_SIZES))]
    scale = randomness.uniform(*_SHARE) * min(photograph.width / width, photograph.height / height)
    left = randomness.uniform(0, photograph.width - width * scale)
    top = randomness.uniform(0, photograph.height - height * scale)
    box = (left, top, left + width * scale, top + height * scale)
    return photograph.resize((width, height), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)


@cache
def _photograph(kind: str) -> Image.Image:
    package, file = _FILES[kind]
    found = find_spec(package)
    assert found is not None and found.submodule_search_locations
    return Image.open(Path(found.submodule_search_locations[0]) / file).convert("RGB")


def _write(path: Path, image: Image.Image, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if number % 5 == 1:
        image = image.transpose(Image.Transpose.ROTATE_90)
        exif[ExifTags.Base.Orientation] = _TURNED_RIGHT
    if number % 10 == 7:
        image = image.convert("L")
    image.save(path, exif=exif)


if __name__ == "__main__":
    write_photographs(Path(sys.argv[1]))
