import json
import os
import tarfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from inlay.data import ImageSet, imagesets, source
from inlay.data.checkup import examine
from inlay.data.decode import Progress
from inlay.data.listing import Reader, Split
from inlay.data.sides import chosen_side
from inlay.data.source import load
from inlay.errors import InlayError


def _noise(height: int, width: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng([height, width, seed]).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def _write(folder: Path, count: int, first: int = 0, side: int = 40) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        _noise(side, side, number).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Class folders a, b and c with 1, 2 and 3 images."""
    folder = tmp_path / "labelled"
    for count, name in enumerate("abc", start=1):
        _write(folder / name, count, first=10 * count)
    return folder


@pytest.mark.parametrize(
    ("shorter_side", "side"),
    [
        (1, 32),
        (28, 32),
        (32, 32),
        (51, 32),
        (52, 64),
        (64, 64),
        (96, 96),
        (110, 128),
        (179, 160),
        (180, 224),
        (4000, 224),
    ],
)
def test_size_by_the_shorter_side(shorter_side: int, side: int) -> None:
    assert chosen_side([(shorter_side, 9000)]) == chosen_side([(9000, shorter_side)]) == side


def test_size_by_the_median() -> None:
    assert chosen_side([(20, 20), (64, 70), (3000, 2000)]) == 64
    assert chosen_side(np.array([[20, 20], [108, 300], [20, 90], [108, 108]], dtype=np.int32)) == 64
    with pytest.raises(ValueError):
        chosen_side([])


@pytest.mark.parametrize("sides", [(40,), (20, 23), (40, 60, 90), (100, 120, 300), (500, 600)])
def test_images_are_read_at_the_size_that_is_told(tmp_path: Path, sides: tuple[int, ...]) -> None:
    """The labelled images have the say, whatever lies beside them."""
    for number, side in enumerate(sides):
        _write(tmp_path / "photos" / "labelled" / "a", 1, first=number, side=side)
        _write(tmp_path / "photos" / "labelled" / "b", 1, first=10 + number, side=side)
    _write(tmp_path / "photos" / "2026-10", 20, side=9)
    assert examine(str(tmp_path / "photos")).size == load(tmp_path / "photos" / "labelled").size


def test_class_folders(labelled: Path) -> None:
    found = examine(str(labelled))
    assert (found.layout, found.images, found.usable) == ("class folders", 6, True)
    assert [(each.path, each.split, each.classes) for each in found.sets] == [
        (str(labelled), None, {"a": 1, "b": 2, "c": 3})
    ]
    assert found.size == (40, 40)
    assert found.sets[0].decoded_bytes == 6 * 3 * 40 * 40


def test_flat_folder_single_image_and_list(labelled: Path, tmp_path: Path) -> None:
    flat = examine(str(labelled / "c"))
    assert (flat.layout, flat.images, flat.sets[0].classes) == ("flat folder", 3, {})
    assert examine(str(labelled / "a" / "10.png")).layout == "image"
    (tmp_path / "list.txt").write_text("labelled/a/10.png\nlabelled/c/30.png\n")
    listed = examine(str(tmp_path / "list.txt"))
    assert (listed.layout, listed.images) == ("list", 2)


def test_split_folders(tmp_path: Path) -> None:
    for number, part in enumerate(("train/a", "train/b", "val/a", "val/b")):
        _write(tmp_path / "set" / part, 2 + number, first=10 * number)
    found = examine(str(tmp_path / "set"))
    assert found.layout == "split folders" and found.usable
    assert [(each.split, each.layout, each.classes) for each in found.sets] == [
        ("train", "class folders", {"a": 2, "b": 3}),
        ("test", "class folders", {"a": 4, "b": 5}),
    ]


def test_folders_beside_those_of_splits_are_examined_too(tmp_path: Path) -> None:
    for number, part in enumerate(("train/a", "train/b", "test/a", "val/a", "labelled/a", "labelled/b", "new")):
        _write(tmp_path / part, 2 + number, first=10 * number)
    (tmp_path / "annotations").mkdir()
    (tmp_path / "labelled" / "c").mkdir()
    found = examine(str(tmp_path))
    assert [(each.path, each.split, each.images) for each in found.sets] == [
        (str(tmp_path), "train", 5),
        (str(tmp_path), "test", 4),
        (str(tmp_path / "labelled"), None, 13),
        (str(tmp_path / "new"), None, 8),
        (str(tmp_path / "val"), None, 5),
    ]
    assert found.layout == "several sets"
    assert [str(tmp_path / "labelled" / "c") in problem for problem in found.problems] == [True]


def test_a_reader_that_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path, split: Split) -> ImageSet:
        return ImageSet.from_arrays(np.load(path), origin=path.name)

    added = Reader("a file of my own", lambda path: path.suffix == ".own", read)
    for module in (imagesets, source):
        monkeypatch.setattr(module, "READERS", (added, *source.READERS))
    with (tmp_path / "images.own").open("wb") as file:
        np.save(file, np.arange(3 * 8 * 8, dtype=np.uint8).reshape(3, 8, 8))
    found = examine(str(tmp_path / "images.own"))
    assert found.usable and [(each.layout, each.images) for each in found.sets] == [("a file of my own", 3)]


def test_shards_and_a_pattern_of_them(labelled: Path, tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    (tmp_path / "shards").mkdir()
    for number, name in enumerate("bc"):
        with tarfile.open(tmp_path / "shards" / f"{number}.tar", "w") as archive:
            for file in sorted((labelled / name).iterdir()):
                archive.add(file, file.name)
    found = examine(str(tmp_path / "shards"))
    assert (found.layout, found.images, found.formats) == ("shards", 5, {"PNG": 5})
    pattern = examine(str(tmp_path / "shards" / "{0..1}.tar"))
    assert (pattern.layout, pattern.images) == ("shards", 5)


def test_folder_of_sets_is_taken_apart(labelled: Path, tmp_path: Path) -> None:
    _write(tmp_path / "2026-10", 4)
    found = examine(str(tmp_path))
    assert found.layout == "several sets" and found.usable
    assert [(Path(each.path).name, each.layout, each.images) for each in found.sets] == [
        ("2026-10", "flat folder", 4),
        ("labelled", "class folders", 6),
    ]


def test_flat_train_and_test_are_two_sets(tmp_path: Path) -> None:
    _write(tmp_path / "train", 2)
    _write(tmp_path / "test", 1, first=5)
    found = examine(str(tmp_path))
    assert [(Path(each.path).name, each.layout, each.images) for each in found.sets] == [
        ("test", "flat folder", 1),
        ("train", "flat folder", 2),
    ]


def test_every_empty_class_folder_is_named_and_the_others_are_examined(labelled: Path) -> None:
    (labelled / "d").mkdir()
    (labelled / "e").mkdir()
    found = examine(str(labelled))
    assert not found.usable
    for name, problem in zip("de", found.problems, strict=True):
        assert f"'{labelled / name}' holds no images" in problem
    assert found.sets[0].classes == {"a": 1, "b": 2, "c": 3}


def test_image_beside_class_folders(labelled: Path) -> None:
    _noise(40, 40).save(labelled / "stray.png")
    found = examine(str(labelled))
    assert len(found.problems) == 1 and "'stray.png'" in found.problems[0]
    assert found.images == 6


def test_no_images(tmp_path: Path) -> None:
    (tmp_path / "notes.txt.bak").write_text("none")
    found = examine(str(tmp_path))
    assert (found.layout, found.images, found.sizes, found.size, found.usable) == ("none", 0, None, None, False)
    assert len(found.problems) == 1 and "holds no images" in found.problems[0]


@pytest.mark.parametrize("name", ["missing", "table.csv"])
def test_what_is_missing_or_not_understood_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "table.csv").write_text("a,b")
    with pytest.raises(InlayError, match=name):
        examine(str(tmp_path / name))


def test_kinds_of_images(tmp_path: Path) -> None:
    colour = _noise(40, 60)
    exif = Image.Exif()
    exif[0x0112] = 6
    colour.save(tmp_path / "turned.jpg", exif=exif)
    colour.save(tmp_path / "plain.jpg")
    colour.quantize(16).save(tmp_path / "palette.png")
    colour.quantize(16).save(tmp_path / "palette.gif")
    colour.convert("L").save(tmp_path / "grey.png")
    Image.fromarray(np.arange(2400, dtype=np.uint16).reshape(40, 60)).save(tmp_path / "deep.png")
    (tmp_path / "notes.md").write_text("two")
    (tmp_path / "phone.HEIC").write_bytes(b"x")
    (tmp_path / ".hidden").write_text("no")
    found = examine(str(tmp_path))
    assert found.formats == {"PNG": 3, "JPEG": 2, "GIF": 1}
    assert found.modes == {"RGB": 2, "P": 2, "L": 1, "I;16": 1} and found.turned == 1
    assert found.other_files == {".md": 1, ".heic": 1}
    assert found.sizes is not None and found.sizes.common == (40, 60) and found.sizes.common_count == 5
    assert found.sizes.aspects == (40 / 60, 60 / 40, 60 / 40)
    assert found.usable


def test_sizes_against_slow_counting(tmp_path: Path) -> None:
    sizes = [(10, 12), (100, 90), (100, 201), (100, 200), (100, 90), (70, 300), (31, 80)]
    for number, (height, width) in enumerate(sizes):
        _noise(height, width, number).save(tmp_path / f"{number}.png")
    found = examine(str(tmp_path))
    shorter = sorted(min(size) for size in sizes)
    assert found.size == (96, 96) and found.sizes is not None
    assert found.sizes.shorter_sides == (shorter[0], shorter[3], shorter[-1])
    assert found.sizes.too_small == sum(96 / min(size) > 2 for size in sizes)
    assert found.sizes.elongated == sum(min(size) / max(size) < 0.5 for size in sizes)
    assert (found.sizes.common, found.sizes.common_count) == ((100, 90), 2)


def test_damaged_files_are_named_with_reasons(labelled: Path) -> None:
    whole = (labelled / "c" / "30.png").read_bytes()
    (labelled / "c" / "30.png").write_bytes(whole[: len(whole) // 2])
    (labelled / "c" / "31.png").write_bytes(b"")
    (labelled / "c" / "text.jpg").write_text("this is no image")
    found = examine(str(labelled))
    assert (found.images, found.damaged, found.usable) == (4, 3, False)
    assert [Path(file).name for file in found.reasons] == ["30.png", "31.png", "text.jpg"]
    assert "truncated" in found.reasons[str(labelled / "c" / "30.png")]
    assert found.reasons[str(labelled / "c" / "text.jpg")] == "no known image format"
    assert found.sets[0].classes == {"a": 1, "b": 2, "c": 1}


def test_ten_of_many_damaged_files_are_named(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02d}.png").write_bytes(b"bad")
    found = examine(str(tmp_path))
    assert (found.images, found.damaged, found.size) == (0, 40, None)
    assert [Path(file).stem for file in found.reasons] == [f"{number:02d}" for number in range(10)]


def test_link_to_a_folder_above(labelled: Path) -> None:
    (labelled / "b" / "round").symlink_to(labelled)
    found = examine(str(labelled))
    assert found.problems == (f"'{labelled / 'b' / 'round'}' is a link to a folder that it lies in; remove it.",)
    assert found.images == 6


@pytest.mark.parametrize("name", ["self.png", "a/self.png"])
def test_link_to_itself(labelled: Path, name: str) -> None:
    (labelled / name).symlink_to(labelled / name)
    found = examine(str(labelled))
    assert len(found.problems) == 1 and f"'{labelled / name}' cannot be read" in found.problems[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(labelled: Path) -> None:
    (labelled / "a" / "10.png").chmod(0)
    assert examine(str(labelled)).reasons == {str(labelled / "a" / "10.png"): "permission denied"}
    (labelled / "a" / "10.png").chmod(0o600)
    (labelled / "b").chmod(0)
    problems = examine(str(labelled)).problems
    (labelled / "b").chmod(0o700)
    assert problems == (f"'{labelled / 'b'}' cannot be read (permission denied); make it readable or remove it.",)


def _same(images: npt.NDArray[np.uint8], first: int, second: int) -> bool:
    return bool((images[first] == images[second]).all())


def test_repeats_against_slow_comparison(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)[rng.integers(0, 30, 60)]
    labels = rng.integers(0, 4, 60)
    labels[:4] = labels[40:44] = np.arange(4)
    is_test = np.arange(60) >= 40
    archive = {
        f"{split}_{name}": values[is_test == (split == "test")]
        for split in ("train", "test")
        for name, values in (("images", images), ("labels", labels))
    }
    np.savez(tmp_path / "set.npz", **archive)
    found = examine(str(tmp_path / "set.npz"))
    assert (found.layout, found.images, found.formats, found.size) == ("npz", 60, {"array": 60}, None)

    within, classes, sets = set(), set(), set()
    for first, second in combinations(range(60), 2):
        if not _same(images, first, second):
            continue
        picture = images[first].tobytes()
        if is_test[first] != is_test[second]:
            sets.add(picture)
        elif labels[first] != labels[second]:
            classes.add(picture)
        else:
            within.add(second)
    assert within and classes and sets
    assert found.repeats["within classes"].count == len(within)
    assert found.repeats["between classes"].count == len(classes)
    assert found.repeats["between sets"].count == len(sets)

    for kind, repeats in found.repeats.items():
        for names in repeats.examples:
            # Images of a split are numbered from 0, so the name of a test image does not tell it from a train image.
            numbers = [int(name.partition("#")[2]) for name in names]
            assert any(
                _same(images, numbers[0] + start, numbers[1] + end)
                for start in (0, 40)
                for end in (0, 40)
                if max(numbers[0] + start, numbers[1] + end) < 60 and (start == end) == (kind != "between sets")
            )


def test_repeated_files_are_named(labelled: Path) -> None:
    picture = labelled / "a" / "10.png"
    # The same pixels in other bytes, so that files are not compared but images.
    Image.open(picture).save(labelled / "a" / "again.bmp")
    Image.open(picture).save(labelled / "c" / "again.png", compress_level=0)
    found = examine(str(labelled))
    assert found.repeats["within classes"].examples == ((str(picture), str(labelled / "a" / "again.bmp")),)
    assert found.repeats["between classes"].examples == (
        (str(labelled / "a" / "again.bmp"), str(labelled / "c" / "again.png")),
    )
    assert found.repeats["between sets"].count == 0
    assert found.usable


def test_memory_is_that_of_the_size_a_run_reads_at(labelled: Path) -> None:
    plain, enlarged = examine(str(labelled)), examine(str(labelled), read_at=lambda size: (2 * size[0], 3 * size[1]))
    assert plain.size is not None and enlarged.size == (2 * plain.size[0], 3 * plain.size[1])
    assert enlarged.sets[0].decoded_bytes == 6 * plain.sets[0].decoded_bytes
    # Images are not small for having been enlarged.
    assert enlarged.sizes == plain.sizes


@pytest.mark.parametrize(("share", "streamed"), [(0.26, True), (0.24, False)])
def test_streamed_if_decoded_images_take_more_than_a_quarter_of_the_memory(
    labelled: Path, monkeypatch: pytest.MonkeyPatch, share: float, streamed: bool
) -> None:
    monkeypatch.setattr(imagesets, "available_memory", lambda: 6 * 3 * 40 * 40 / share)
    assert examine(str(labelled)).sets[0].streamed is streamed


def test_findings_become_json(labelled: Path) -> None:
    found = examine(str(labelled)).to_json()
    read = json.loads(json.dumps(found))
    assert read["usable"] is True and read["sets"][0]["classes"] == {"a": 1, "b": 2, "c": 3}
    assert read["sizes"]["common"] == [40, 40]


def test_work_is_watched_over_all_sets(tmp_path: Path) -> None:
    _write(tmp_path / "old" / "a", 40, side=8)
    _write(tmp_path / "new", 40, side=8)
    news: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def watch(name: str) -> Iterator[Progress]:
        news[name] = []
        yield lambda done, total: news[name].append((done, total))

    examine(str(tmp_path), watch=watch)
    assert list(news) == ["reading headers", "reading images"]
    for told in news.values():
        assert told == sorted(told) and told[-1] == (80, 80) and {total for _, total in told} == {80}


def test_images_are_not_kept(tmp_path: Path) -> None:
    _noise(224, 224).save(tmp_path / "a.jpg")
    (tmp_path / "list.txt").write_text("a.jpg\n" * 150)
    tracemalloc.start()
    examine(str(tmp_path / "list.txt"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 150 * 3 * 224 * 224 / 2
