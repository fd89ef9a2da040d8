import os
from pathlib import Path

import pytest

from inlay.class_folders import folder_names, write_class_folders
from inlay.clusters import SortedImage
from inlay.errors import InlayError

HOSTILE = {
    0: "../../x",
    1: "..",
    2: "/etc/passwd",
    3: "a/b",
    4: "a\\b",
    5: "con",
    6: "Cat",
    7: "cat",
    8: "cat-7",
    9: " . ",
    10: "😀" * 100,
    11: "caf\u00e9",
    12: "cafe\u0301",
    13: "a_b",
}


def _image(path: Path, id: int | None, name: str, verdict: str = "new") -> SortedImage:
    return SortedImage(str(path), id, name, None if id is None else 0.5, 1, verdict)  # type: ignore[arg-type]


@pytest.fixture
def images(tmp_path: Path) -> list[SortedImage]:
    """Two images of one name in a class, one in another class, and three that are in none."""
    found = []
    for folder, id, verdict in (
        ("a", 3, "new"),
        ("b", 3, "new"),
        ("c", 4, "new"),
        ("d", None, "new"),
        ("e", 0, "known"),
    ):
        file = tmp_path / "photos" / folder / "1.png"
        file.parent.mkdir(parents=True)
        file.write_bytes(folder.encode())
        found.append(_image(file, id, f"class {id}", verdict))
    return [*found, _image(tmp_path / "photos/gone.png", None, "", "neither")]


def _content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


COPIED = {"class 3/1.png": b"a", "class 3/1-2.png": b"b", "class 4/1.png": b"c"}


def test_every_name_becomes_one_folder_of_its_own(tmp_path: Path) -> None:
    names = folder_names(HOSTILE)
    assert names.keys() == HOSTILE.keys()
    for name in names.values():
        assert Path(name).name == name and name not in (".", "..")
        assert (tmp_path / name).resolve().parent == tmp_path.resolve()
        (tmp_path / name).mkdir()
    assert len({name.casefold() for name in names.values()}) == len(HOSTILE)
    assert (names[6], names[7], names[8]) == ("Cat", "cat-7", "cat-7-8")
    assert names[0] == "_.._x"


def test_new_images_are_copied_and_nothing_else(images: list[SortedImage], tmp_path: Path) -> None:
    assert write_class_folders(images, tmp_path / "out") == 3
    assert _content(tmp_path / "out") == COPIED
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "photos"]


def test_links_lead_to_the_images(images: list[SortedImage], tmp_path: Path) -> None:
    write_class_folders(images, tmp_path / "out", link=True)
    assert _content(tmp_path / "out") == COPIED
    assert os.readlink(tmp_path / "out/class 3/1-2.png") == str(tmp_path / "photos/b/1.png")


def test_a_class_cannot_lead_out_of_the_folder(images: list[SortedImage], tmp_path: Path) -> None:
    hostile = [_image(Path(image.path), number, HOSTILE[number]) for number, image in enumerate(images[:4])]
    before = _content(tmp_path / "photos")
    (tmp_path / "deep").mkdir()
    write_class_folders(hostile, tmp_path / "deep" / "out")
    assert len(_content(tmp_path / "deep" / "out")) == 4
    assert _content(tmp_path / "photos") == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["deep", "photos"]


def test_a_folder_that_holds_something_is_left_alone_unless_told(images: list[SortedImage], tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "class 3").mkdir(parents=True)
    (out / "class 3/1.png").write_text("mine")
    (out / "other.txt").write_text("mine too")
    with pytest.raises(InlayError, match=r"holds something already; choose a new folder, or pass --overwrite"):
        write_class_folders(images, out)
    assert _content(out) == {"class 3/1.png": b"mine", "other.txt": b"mine too"}
    write_class_folders(images, out, overwrite=True)
    assert _content(out) == {**COPIED, "other.txt": b"mine too"}


def test_a_link_within_the_folder_is_not_followed(images: list[SortedImage], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/class 3").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InlayError, match="is a link"):
        write_class_folders(images, tmp_path / "out", overwrite=True)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_refusals(images: list[SortedImage], tmp_path: Path) -> None:
    with pytest.raises(InlayError, match=r"^'array#3' is no file and cannot be copied; write --csv FILE"):
        write_class_folders([_image(Path("array#3"), 3, "cat")], tmp_path / "out")
    with pytest.raises(InlayError, match="cannot be written"):
        write_class_folders(images, tmp_path / "no" / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(InlayError, match="is a file; give the name of a folder"):
        write_class_folders(images, tmp_path / "file")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/inlay.json").write_text("{}")
    with pytest.raises(InlayError, match="which holds a run and nothing else; choose a place beside it"):
        write_class_folders(images, tmp_path / "run" / "out")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "photos", "run"]
