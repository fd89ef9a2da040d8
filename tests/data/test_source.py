import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from inlay.data import ImageSet, StreamedSet, load, open_images, source, splits
from inlay.data.cache import write_cache
from inlay.data.listing import Reader
from inlay.errors import InlayError

PIXELS = np.arange(2 * 6 * 5, dtype=np.uint8).reshape(2, 6, 5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, value in (("ant", 1), ("bee", 2)):
        (tmp_path / "set" / name).mkdir(parents=True)
        for copy in range(2):
            Image.new("L", (12, 8), 10 * value + copy).save(tmp_path / "set" / name / f"{copy}.png")
    return tmp_path / "set"


def test_arrays_and_pairs() -> None:
    assert load(PIXELS).labels is None
    assert load(torch.from_numpy(PIXELS)).images.shape == (2, 1, 6, 5)
    pair = load((PIXELS, ["b", "a"]))
    assert pair.class_names == ("a", "b")
    assert splits(PIXELS) == ()


def test_an_image_set_is_returned_as_it_is_or_converted() -> None:
    images = ImageSet.from_arrays(PIXELS, [0, 1])
    assert load(images) is images
    assert load(images, size=(6, 5), channels=1) is images
    converted = load(images, size=4, channels=3)
    assert converted.images.shape == (2, 3, 4, 4)
    assert converted.labels is images.labels


def test_single_file_and_list_of_paths(folder: Path) -> None:
    one = load(folder / "bee" / "1.png")
    assert one.images.shape == (1, 3, 8, 12) and bool((one.images == 21).all())
    two = load([folder / "bee" / "0.png", str(folder / "ant" / "1.png")])
    assert two.images[:, 0, 0, 0].tolist() == [20, 11]
    # A pair of paths is a list, not images and labels.
    assert load((str(folder / "bee" / "0.png"), str(folder / "ant" / "1.png"))).fingerprint() == two.fingerprint()


def test_size_and_channels_of_files(folder: Path) -> None:
    assert load(folder).images.shape == (4, 3, 8, 12)
    assert load(folder, size=4).images.shape == (4, 3, 4, 4)
    assert load(folder, size=(4, 6), channels=1).images.shape == (4, 1, 4, 6)
    Image.new("L", (20, 30)).save(folder / "bee" / "2.png")
    assert load(folder).size == (8, 8)


def test_cache_hit(folder: Path, cache_of_its_own: Path) -> None:
    first = load(folder)
    (stored,) = cache_of_its_own.iterdir()
    # Other pixels under the same key show where an answer comes from.
    write_cache(stored.stem, first.images.numpy() + 100, np.ones(4, dtype=np.bool_))
    again = load(folder)
    assert torch.equal(again.images, first.images + 100)
    assert again.names == first.names
    assert torch.equal(load(folder, cache=False).images, first.images)
    assert torch.equal(load(folder, size=(8, 12)).images, first.images)
    assert load(folder, channels=1).images[:, 0, 0, 0].tolist() == [10, 11, 20, 21]


def test_cache_off_writes_nothing(folder: Path, cache_of_its_own: Path) -> None:
    load(folder, cache=False)
    assert not list(cache_of_its_own.iterdir())


def test_corrupt_cache_is_decoded_anew(folder: Path, cache_of_its_own: Path) -> None:
    first = load(folder)
    (stored,) = cache_of_its_own.iterdir()
    whole = stored.read_bytes()
    for damaged in (b"", b"garbage", whole[:-200], whole[:150] + b"\x00\xff" + whole[152:]):
        stored.write_bytes(damaged)
        assert load(folder).fingerprint() == first.fingerprint()
        assert stored.read_bytes() == whole


def test_a_changed_file_is_decoded_anew(folder: Path) -> None:
    load(folder)
    file = folder / "ant" / "0.png"
    status = file.stat()
    Image.new("L", (12, 8), 99).save(file)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    assert load(folder).images[0, :, 0, 0].tolist() == [99, 99, 99]


def test_an_unwritable_cache_is_no_error(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "file" / "cache"))
    assert len(load(folder)) == 4


def test_skip_bad(folder: Path) -> None:
    bad = folder / "ant" / "1.png"
    bad.write_bytes(b"bad")
    expected = [str(folder / "ant" / "0.png"), str(folder / "bee" / "0.png"), str(folder / "bee" / "1.png")]
    for _ in ("decoded", "cached"):
        images = load(folder, skip_bad=True)
        assert list(images.names) == expected
        assert images.labels is not None and images.labels.tolist() == [0, 1, 1]
        assert images.images[:, 0, 0, 0].tolist() == [10, 20, 21]
        assert images.skipped == (str(bad),)
        # What was cached with a file left out does not hide the damage from those who did not ask for that.
        with pytest.raises(InlayError, match="pass --skip-bad"):
            load(folder)


def test_a_class_or_a_set_with_nothing_left(folder: Path) -> None:
    for name in ("0.png", "1.png"):
        (folder / "ant" / name).write_bytes(b"bad")
    with pytest.raises(InlayError, match="Every image of the class 'ant' is damaged"):
        load(folder, skip_bad=True)
    with pytest.raises(InlayError, match="None of the 2 image files can be read"):
        load(folder / "ant", skip_bad=True)


def test_progress(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    load(folder, on_progress=lambda done, total: calls.append((done, total)))
    assert calls == [(4, 4)]


def test_files_are_streamed_when_asked_or_when_they_take_a_quarter_of_the_memory(folder: Path) -> None:
    decoded = 4 * 3 * 8 * 12
    assert isinstance(open_images(folder), ImageSet)
    assert isinstance(open_images(folder, memory=4 * decoded - 1, cache=False), StreamedSet)
    assert isinstance(open_images(folder, memory=4 * decoded, cache=False), ImageSet)
    assert isinstance(open_images(folder, size=16, memory=4 * decoded), StreamedSet)
    assert isinstance(open_images(folder, stream=True), StreamedSet)
    assert isinstance(open_images(folder, stream=False, memory=1), ImageSet)
    assert isinstance(open_images([folder / "bee" / "0.png"], stream=True), StreamedSet)


def test_a_cached_set_is_weighed_by_what_is_stored(folder: Path, cache_of_its_own: Path) -> None:
    load(folder)
    (stored,) = cache_of_its_own.iterdir()
    assert isinstance(open_images(folder, memory=4 * stored.stat().st_size - 1), StreamedSet)
    assert isinstance(open_images(folder, memory=4 * stored.stat().st_size), ImageSet)


def test_arrays_are_never_streamed() -> None:
    assert isinstance(open_images(PIXELS, stream=True), ImageSet)
    assert isinstance(open_images((PIXELS, [0, 1]), memory=1), ImageSet)


def test_a_streamed_set_is_returned_as_it_is_or_read_in_another_way(folder: Path) -> None:
    streamed = open_images(folder, stream=True)
    assert isinstance(streamed, StreamedSet)
    assert open_images(streamed) is streamed
    assert open_images(streamed, size=(8, 12), channels=3) is streamed
    some = streamed.of_classes(["bee"])
    smaller = open_images(some, size=4, channels=1, stream=True)
    assert isinstance(smaller, StreamedSet)
    assert (smaller.size, smaller.channels, smaller.class_names) == ((4, 4), 1, ("bee",))
    decoded = load(some)
    assert isinstance(decoded, ImageSet) and decoded.fingerprint() == some.fingerprint()
    assert splits(streamed) == ()


@pytest.mark.parametrize(
    ("what", "options", "sentence"),
    [
        ("no/such/folder", {}, "no file or folder 'no/such/folder'; check the spelling"),
        (["no/such.png"], {}, "no image file 'no/such.png'"),
        ([], {}, "list of images is empty"),
        (PIXELS[:0], {}, "holds no images; pass at least one"),
        (7, {}, "A int cannot be read as images; pass a path"),
        ((1, 2, 3), {}, "pass a list of paths, or a pair"),
        (PIXELS, {"split": "valid"}, "no split 'valid'; write 'train' or 'test'"),
        (PIXELS, {"size": 0}, "image size 0 is not understood"),
        (PIXELS, {"channels": 4}, "write 1 for grey or 3 for colour"),
    ],
)
def test_bad_requests(what: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InlayError, match=sentence):
        load(what, **options)


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Nothing is unreadable to root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that an ordinary user can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        (Path(name) / "set" / "ant").mkdir(parents=True)
        Image.new("L", (8, 8)).save(Path(name) / "set" / "ant" / "a.png")
        yield Path(name)
        for folder in (Path(name) / "set", Path(name) / "set" / "ant"):
            folder.chmod(0o755)


@pytest.mark.parametrize("locked", ["set", "set/ant"])
@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_unreadable_folders(open_to_all: Path, locked: str, mode: int) -> None:
    (open_to_all / locked).chmod(mode)
    sources: list[Any] = [open_to_all / "set", open_to_all / "set" / "ant", [open_to_all / "set" / "ant" / "a.png"]]
    with ordinary_user():
        for each in sources:
            with pytest.raises(InlayError, match=r"set.*' cannot be read .*permission denied\)"):
                load(each)
        if locked == "set":
            with pytest.raises(InlayError, match=r"set.*' cannot be read \(permission denied\); make it readable"):
                splits(open_to_all / "set")


def test_a_path_beyond_all_limits() -> None:
    with pytest.raises(InlayError, match=r"xxx' cannot be read \(file name too long\); make it readable, or name"):
        load("x" * 300)


def test_an_unknown_layout_lists_what_is_understood(tmp_path: Path) -> None:
    (tmp_path / "images.h5").write_bytes(b"")
    with pytest.raises(InlayError) as caught:
        load(tmp_path / "images.h5")
    assert all(reader.layout in str(caught.value) for reader in source.READERS)


def test_a_new_reader_is_one_more_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "images.raw").write_bytes(bytes(range(16)))
    reader = Reader(
        "raw bytes",
        lambda path: path.suffix == ".raw",
        lambda path, split: ImageSet.from_arrays(np.frombuffer(path.read_bytes(), np.uint8).reshape(1, 4, 4)),
    )
    monkeypatch.setattr(source, "READERS", (*source.READERS, reader))
    assert load(tmp_path / "images.raw").images.flatten().tolist() == list(range(16))
