"""Tiny-ImageNet in its original layout."""

from pathlib import Path

from inlay.data.listing import Listing, Reader, Split, image_files
from inlay.errors import InlayError

__all__ = ["READER"]


def _recognises(path: Path) -> bool:
    return (path / "wnids.txt").is_file() and (path / "train").is_dir()


def _read(path: Path, split: Split) -> Listing:
    # The order of wnids.txt is arbitrary; published splits count the classes in sorted order.
    class_names = tuple(sorted(_text(path / "wnids.txt").split()))
    if not class_names:
        raise InlayError(f"'{path / 'wnids.txt'}' names no classes; download the data set again.")
    return _train(path, class_names) if split == "train" else _val(path, class_names)


def _train(path: Path, class_names: tuple[str, ...]) -> Listing:
    files: list[Path] = []
    labels: list[int] = []
    for label, wnid in enumerate(class_names):
        folder = path / "train" / wnid / "images"
        found = image_files(folder) if folder.is_dir() else []
        if not found:
            raise InlayError(f"The class folder '{folder}' is missing or holds no images; download the data set again.")
        files += found
        labels += [label] * len(found)
    return Listing(tuple(files), tuple(labels), class_names)


def _val(path: Path, class_names: tuple[str, ...]) -> Listing:
    annotations = path / "val" / "val_annotations.txt"
    if not annotations.is_file():
        raise InlayError(f"'{annotations}' is missing; restore the original layout of the val folder.")
    images = annotations.parent / "images"
    if not images.is_dir():
        raise InlayError(f"The folder '{images}' is missing; restore the original layout of the val folder.")
    index = {wnid: label for label, wnid in enumerate(class_names)}
    present = {file.name for file in image_files(images)}
    files: list[Path] = []
    labels: list[int] = []
    for number, line in enumerate(_text(annotations).splitlines(), start=1):
        name, wnid = (*line.split("\t"), "", "")[:2]
        if name not in present or wnid not in index:
            raise InlayError(
                f"Line {number} of '{annotations}' names a missing image or an unknown class; "
                "download the data set again."
            )
        files.append(images / name)
        labels.append(index[wnid])
    return Listing(tuple(files), tuple(labels), class_names)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InlayError(f"'{file}' is not UTF-8 text; download the data set again.") from error


def _splits(path: Path) -> tuple[Split, ...]:
    return ("train", "test")


READER = Reader(
    "the folder of Tiny-ImageNet with train/, val/ and wnids.txt (val is the test split)",
    _recognises,
    _read,
    _splits,
)
