from pathlib import Path

import pytest
from PIL import Image

from inlay.data import Stages, load, splits
from inlay.data.images import ImageSet
from inlay.errors import InlayError


def draw(file: Path, value: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), value).save(file)


def values(images: ImageSet) -> list[int]:
    return images.images[:, 0, 0, 0].tolist()


def labels(images: ImageSet) -> list[int]:
    assert images.labels is not None
    return images.labels.tolist()


def test_one_folder_per_class(tmp_path: Path) -> None:
    draw(tmp_path / "dog" / "b.png", 4)
    draw(tmp_path / "dog" / "a.PNG", 3)
    draw(tmp_path / "Zebra" / "z.bmp", 1)
    draw(tmp_path / "cat" / "c.png", 2)
    (tmp_path / "dog" / "notes.md").write_text("not an image")
    (tmp_path / "dog" / "._a.png").write_text("nor is this")
    (tmp_path / ".git").mkdir()
    (tmp_path / "README").write_text("hello")
    images = load(tmp_path)
    assert images.class_names == ("Zebra", "cat", "dog")
    assert labels(images) == [0, 1, 2, 2]
    assert values(images) == [1, 2, 3, 4]
    assert images.names[2] == str(tmp_path / "dog" / "a.PNG")
    assert images.channels == 3 and images.size == (8, 8)
    assert splits(tmp_path) == ()
    assert load(tmp_path, split="test").fingerprint() == images.fingerprint()


def test_numbered_classes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in range(12):
        draw(tmp_path / "train" / str(number) / "a.png", number)
        draw(tmp_path / "test" / str(number) / "a.png", 100 + number)
    train, test = load(tmp_path), load(tmp_path, split="test")
    assert train.class_names == test.class_names == tuple(str(number) for number in range(12))
    assert labels(train) == values(train) == list(range(12))
    assert Stages(train, test, base=3, novel=[2]).class_names(1) == ("3", "4")


def test_flat_folder(tmp_path: Path) -> None:
    draw(tmp_path / "2.png", 2)
    draw(tmp_path / "10.png", 10)
    images = load(str(tmp_path))
    assert images.labels is None
    assert values(images) == [10, 2]


@pytest.mark.parametrize(("folder", "also"), [("test", "val"), ("val", None)])
def test_split_folders(tmp_path: Path, folder: str, also: str | None) -> None:
    draw(tmp_path / "train" / "train" / "a.png", 1)
    draw(tmp_path / "train" / "boat" / "a.png", 2)
    draw(tmp_path / folder / "train" / "a.png", 3)
    if also:
        draw(tmp_path / also / "train" / "a.png", 9)
    assert splits(tmp_path) == ("train", "test")
    train = load(tmp_path)
    assert (train.class_names, values(train)) == (("boat", "train"), [2, 1])
    test = load(tmp_path, split="test")
    assert (test.class_names, values(test)) == (("train",), [3])
    # The class "train" inside the training folder is a class, not a split.
    assert load(tmp_path / "train").fingerprint() == train.fingerprint()


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    draw(tmp_path / "train" / "boat" / "a.png")
    with pytest.raises(InlayError, match="has no test images but train; name a folder of test images"):
        load(tmp_path, split="test")


def test_split_folders_without_classes(tmp_path: Path) -> None:
    draw(tmp_path / "train" / "a.png")
    draw(tmp_path / "test" / "a.png")
    with pytest.raises(InlayError, match=r"The test and train folders of .* hold no class folders; name one of them"):
        load(tmp_path)
    assert load(tmp_path / "test").labels is None


def test_empty_class_folder(tmp_path: Path) -> None:
    draw(tmp_path / "dog" / "a.png")
    (tmp_path / "cat").mkdir()
    with pytest.raises(InlayError, match=r"class folder '.*cat' holds no images; put images into it or remove it"):
        load(tmp_path)


def test_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "picture.heic").write_bytes(b"?")
    with pytest.raises(InlayError, match=r"holds no images; name a folder of files that end in one of .*jpeg.*png"):
        load(tmp_path)


def test_mixed_nesting(tmp_path: Path) -> None:
    draw(tmp_path / "dog" / "a.png")
    draw(tmp_path / "b.png")
    with pytest.raises(InlayError, match=r"both images and folders, such as 'b\.png' and 'dog'"):
        load(tmp_path)
    (tmp_path / "b.png").unlink()
    draw(tmp_path / "cat" / "kittens" / "c.png")
    with pytest.raises(InlayError, match=r"class folder '.*cat' holds another folder, 'kittens'"):
        load(tmp_path)
