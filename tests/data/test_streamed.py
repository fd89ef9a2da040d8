from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from inlay.data import Images, ImageSet, StreamedSet, load, open_images
from inlay.engine.feed import StreamedFeed
from inlay.errors import InlayError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of colour noise, 33 images each, so that they make several tasks."""
    random = np.random.default_rng(0)
    for name in ("ant", "bee", "cat"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(33):
            picture = Image.fromarray(random.integers(0, 256, (8, 12, 3), dtype=np.uint8))
            picture.save(tmp_path / "set" / name / f"{number:02}.png")
    return tmp_path / "set"


def both(folder: Path) -> tuple[ImageSet, StreamedSet]:
    streamed = open_images(folder, stream=True)
    assert isinstance(streamed, StreamedSet)
    return load(folder), streamed


def assert_the_same(one: Images, other: Images) -> None:
    """Everything that any set offers."""
    assert (one.names, one.class_names, one.skipped) == (other.names, other.class_names, other.skipped)
    assert (len(one), one.size, one.channels) == (len(other), other.size, other.channels)
    assert (one.labels is None) == (other.labels is None)
    if one.labels is not None and other.labels is not None:
        assert torch.equal(one.labels, other.labels)
    assert one.fingerprints() == other.fingerprints()
    assert one.fingerprint() == other.fingerprint()
    assert torch.equal(one.level_counts(), other.level_counts())
    order = torch.randperm(len(one), generator=torch.Generator().manual_seed(1))
    first, second = (
        images.pixels[order] if isinstance(images.pixels, torch.Tensor) else images.pixels.read(order)
        for images in (one, other)
    )
    assert torch.equal(first, second)


def test_streamed_and_decoded_sets_are_the_same(folder: Path) -> None:
    decoded, streamed = both(folder)
    assert_the_same(decoded, streamed)
    assert_the_same(decoded.without_labels(), streamed.without_labels())
    assert_the_same(decoded.of_classes(["cat", "ant"]), streamed.of_classes(["cat", "ant"]))
    assert_the_same(decoded.select([40, 3, 3]), streamed.select([40, 3, 3]))
    chosen = torch.arange(99) % 5 == 0
    assert_the_same(decoded.select(chosen).of_classes(["bee"]), streamed.select(chosen).of_classes(["bee"]))


def test_sizes_and_channels(folder: Path) -> None:
    for size, channels in ((None, 1), (6, None), ((4, 10), 3)):
        streamed = open_images(folder, size=size, channels=channels, stream=True)
        assert isinstance(streamed, StreamedSet)
        assert_the_same(load(folder, size=size, channels=channels), streamed)
        assert streamed.pixels.shape == (streamed.channels, *streamed.size)


def test_level_counts_of_decoded_images() -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (3000, 2, 2, 1), dtype=np.uint8)
    expected = torch.zeros(2, 256, dtype=torch.int64)
    for image in pixels:
        for channel in range(2):
            for level in image[channel].flatten():
                expected[channel, int(level)] += 1
    counted = ImageSet(torch.from_numpy(pixels), tuple(map(str, range(3000)))).level_counts()
    assert torch.equal(counted, expected)
    assert torch.equal(ImageSet(torch.zeros(0, 1, 4, 4, dtype=torch.uint8), ()).level_counts(), torch.zeros(1, 256))


def test_files_are_checked_once(folder: Path, cache_of_its_own: Path) -> None:
    first = open_images(folder, stream=True)
    (stored,) = cache_of_its_own.iterdir()
    assert stored.stat().st_size < 20_000
    calls: list[tuple[int, int]] = []
    again = open_images(folder, stream=True, on_progress=lambda done, total: calls.append((done, total)))
    assert calls == []
    assert_the_same(first, again)
    for damaged in (b"", stored.read_bytes()[:-300]):
        stored.write_bytes(damaged)
        open_images(folder, stream=True, on_progress=lambda done, total: calls.append((done, total)))
        assert calls.pop() == (99, 99)
    open_images(folder, stream=True, cache=False, on_progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (99, 99)


def test_without_the_cache_nothing_is_written(folder: Path, cache_of_its_own: Path) -> None:
    streamed = open_images(folder, stream=True, cache=False)
    streamed.select([1, 2]).level_counts()
    assert not list(cache_of_its_own.iterdir())


def test_a_changed_file_is_seen(folder: Path) -> None:
    before = open_images(folder, stream=True).fingerprints()
    Image.new("RGB", (12, 8), (1, 2, 3)).save(folder / "bee" / "05.png", compress_level=0)
    after = open_images(folder, stream=True).fingerprints()
    assert [number for number in range(99) if before[number] != after[number]] == [33 + 5]


def test_damaged_files_are_refused_or_left_out_as_by_load(folder: Path) -> None:
    (folder / "bee" / "05.png").write_bytes(b"bad")
    (folder / "ant" / "07.png").write_bytes((folder / "ant" / "07.png").read_bytes()[:60])
    for _ in ("found", "cached"):
        assert_the_same(load(folder, skip_bad=True), open_images(folder, stream=True, skip_bad=True))
        for stream in (True, False):
            with pytest.raises(InlayError, match=r"ant/07\.png' cannot be read as an image .*pass --skip-bad"):
                open_images(folder, stream=stream)


def test_a_class_or_a_set_with_nothing_left(folder: Path) -> None:
    for file in (folder / "bee").iterdir():
        file.write_bytes(b"bad")
    with pytest.raises(InlayError, match="Every image of the class 'bee' is damaged"):
        open_images(folder, stream=True, skip_bad=True)
    with pytest.raises(InlayError, match="None of the 33 image files can be read"):
        open_images(folder / "bee", stream=True, skip_bad=True)


def test_a_file_damaged_later_is_refused_when_it_is_needed(folder: Path) -> None:
    streamed = open_images(folder, stream=True)
    assert isinstance(streamed, StreamedSet)
    (folder / "ant" / "03.png").write_bytes(b"bad")
    assert streamed.pixels.read(torch.tensor([2, 4])).shape == (2, 3, 8, 12)
    with pytest.raises(InlayError, match=r"ant/03\.png' cannot be read as an image \(no known image format\); repair"):
        streamed.pixels.read(torch.tensor([2, 3]))


def test_choices_it_cannot_make(folder: Path) -> None:
    streamed = open_images(folder, stream=True)
    with pytest.raises(InlayError, match="no class 'dog'; write one of ant, bee, cat"):
        streamed.of_classes(["dog"])
    with pytest.raises(InlayError, match="Unlabelled images cannot be chosen by class"):
        streamed.without_labels().of_classes(["ant"])
    with pytest.raises(ValueError, match="indices must be positions or 99 truth values"):
        streamed.select(torch.tensor([0.5]))


def test_the_parts_must_fit_each_other(folder: Path) -> None:
    streamed = open_images(folder / "ant", stream=True)
    assert isinstance(streamed, StreamedSet)
    with pytest.raises(ValueError, match="33 images but 2 fingerprints"):
        StreamedSet(streamed.pixels, streamed.prints[:2])
    with pytest.raises(ValueError, match="labels must be indices"):
        StreamedSet(streamed.pixels, streamed.prints, torch.ones(33, dtype=torch.int64), ("one",))


def test_its_text_says_what_it_holds(folder: Path) -> None:
    assert repr(open_images(folder, stream=True)) == "StreamedSet(99 images of 3 x 8 x 12, 3 classes)"
    assert "unlabelled" in repr(open_images(folder / "ant", stream=True))


def test_a_feed_streams_it(folder: Path) -> None:
    decoded, streamed = both(folder)
    order = torch.randperm(99, generator=torch.Generator().manual_seed(2)).reshape(9, 11)
    feed = StreamedFeed(streamed.pixels, torch.device("cpu"), workers=3)
    for request, batch in zip(order, feed.batches(order), strict=True):
        assert torch.equal(batch, decoded.images[request])


def test_a_damaged_file_stops_its_feed_in_words(folder: Path) -> None:
    _, streamed = both(folder)
    (folder / "cat" / "00.png").write_bytes(b"bad")
    with pytest.raises(InlayError, match=r"cat/00\.png' cannot be read as an image"):
        list(StreamedFeed(streamed.pixels, torch.device("cpu")).batches(torch.arange(99).reshape(9, 11)))
