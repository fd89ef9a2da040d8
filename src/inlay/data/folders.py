"""Folders of image files: one sub-folder per class, or flat."""

from pathlib import Path

from inlay.data.listing import IMAGE_SUFFIXES, Listing, Reader, Split, image_files, sub_folders
from inlay.errors import InlayError

__all__ = ["READER", "split_folder"]

_SPLIT_FOLDERS: dict[Split, tuple[str, ...]] = {"train": ("train",), "test": ("test", "val")}


def _splits(path: Path) -> tuple[Split, ...]:
    # A class folder never holds folders, so a class called "train" is not mistaken for a split.
    named = {name for names in _SPLIT_FOLDERS.values() for name in names}
    if not any(folder.name in named and sub_folders(folder) for folder in sub_folders(path)):
        return ()
    return tuple(split for split in _SPLIT_FOLDERS if split_folder(path, split) is not None)


def split_folder(path: Path, split: Split) -> Path | None:
    """The folder below a path that holds the images of a split, if there is one."""
    return next((path / name for name in _SPLIT_FOLDERS[split] if (path / name).is_dir()), None)


def _read(path: Path, split: Split) -> Listing:
    folder = split_folder(path, split) if _splits(path) else path
    if folder is None:
        raise InlayError(f"'{path}' has no {' or '.join(_SPLIT_FOLDERS[split])} folder; add one.")
    classes = sub_folders(folder)
    images = image_files(folder)
    if classes and images:
        raise InlayError(
            f"'{folder}' holds both images and folders, such as '{images[0].name}' and '{classes[0].name}'; "
            "put every image into the folder of its class."
        )
    if classes:
        return _of_classes(folder, classes)
    if not images:
        raise InlayError(
            f"'{folder}' holds no images; name a folder of files that end in one of "
            f"{', '.join(sorted(IMAGE_SUFFIXES))}."
        )
    return Listing(tuple(images))


def _of_classes(folder: Path, classes: list[Path]) -> Listing:
    if len(classes) > 1 and {each.name for each in classes} <= {"train", "test", "val"}:
        raise InlayError(
            f"The {' and '.join(each.name for each in classes)} folders of '{folder}' hold no class folders; "
            f"name one of them, such as '{classes[0]}', to read its images as unlabelled."
        )
    files: list[Path] = []
    labels: list[int] = []
    for label, class_folder in enumerate(classes):
        if inner := sub_folders(class_folder):
            raise InlayError(
                f"The class folder '{class_folder}' holds another folder, '{inner[0].name}'; "
                f"put the images of a class directly into its folder, or name one of the folders of '{folder}' if they "
                "are sets of their own."
            )
        found = image_files(class_folder)
        if not found:
            raise InlayError(f"The class folder '{class_folder}' holds no images; put images into it or remove it.")
        files += found
        labels += [label] * len(found)
    return Listing(tuple(files), tuple(labels), tuple(each.name for each in classes))


READER = Reader(
    "a folder of images, one with a sub-folder per class, or one with train/ and test/ (or val/) of these",
    Path.is_dir,
    _read,
    _splits,
)
