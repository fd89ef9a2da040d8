"""The digits of the demonstration as folders of image files."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from inlay.data import ImageSet
from inlay.data.demo import demo_digits

__all__ = ["LABELLED", "NOVEMBER", "OCTOBER", "write_digit_files"]

LABELLED, OCTOBER, NOVEMBER = ("0", "1", "2", "4", "7"), ("3", "6"), ("5", "9")
_LABELLED_EACH, _NEW_EACH, _OLD_EACH, _TO_NAME_EACH = 120, 60, 15, 12


def write_digit_files(folder: Path) -> dict[str, str]:
    """Write `photos/labelled`, `photos/2026-10`, `photos/2026-11` and `new`.

    Returns:
        The digit of each unlabelled file, by its path below the folder.
    """
    train, test = demo_digits()
    kinds: dict[str, str] = {}
    for digit in LABELLED:
        _write(folder, [f"photos/labelled/{digit}/{number}.png" for number in range(_LABELLED_EACH)], train, digit, 0)
    later = _LABELLED_EACH
    for month, new, old in (("2026-10", OCTOBER, LABELLED), ("2026-11", NOVEMBER, (*LABELLED, *OCTOBER))):
        for digit, count in [*((digit, _NEW_EACH) for digit in new), *((digit, _OLD_EACH) for digit in old)]:
            paths = [f"photos/{month}/scan-{len(kinds) + number:04d}.png" for number in range(count)]
            kinds |= _write(folder, paths, train, digit, later)
        later += _NEW_EACH
    for digit in (*LABELLED, *OCTOBER, *NOVEMBER):
        paths = [f"new/{len(kinds) + number:04d}.jpg" for number in range(_TO_NAME_EACH)]
        kinds |= _write(folder, paths, test, digit, 0)
    return kinds


def _write(folder: Path, paths: Sequence[str], digits: ImageSet, digit: str, first: int) -> dict[str, str]:
    chosen = digits.of_classes([digit]).images[first : first + len(paths)]
    for path, image in zip(paths, chosen, strict=True):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(folder / path)
    return dict.fromkeys(paths, digit)
