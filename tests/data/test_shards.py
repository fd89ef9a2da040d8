import io
import os
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image

from inlay.data import StreamedSet, load, open_images, splits
from inlay.data.listing import Member
from inlay.errors import InlayError


def picture(level: int, format: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (6, 4), (level, 0, 255 - level)).save(stream, format=format)
    return stream.getvalue()


def pack(shard: Path, files: Mapping[str, bytes]) -> Path:
    shard.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(shard, "w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return shard


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three shards of two samples of the classes 3 and 12."""
    for number in range(3):
        files: dict[str, bytes] = {}
        for place in range(2):
            level = 10 * number + place
            files |= {f"{level:04}.png": picture(level), f"{level:04}.cls": b"12\n" if level % 2 else b"3"}
        pack(tmp_path / "set" / f"part-{number:03}.tar", files)
    return tmp_path / "set"


LEVELS = [0, 1, 10, 11, 20, 21]


@pytest.mark.parametrize("stream", [True, False])
def test_a_folder_of_shards(shards: Path, stream: bool) -> None:
    images = open_images(shards, stream=stream)
    assert (len(images), images.size, images.channels) == (6, (4, 6), 3)
    assert images.class_names == ("3", "12")
    assert images.labels is not None and images.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert images.names[2] == f"{shards}/part-001.tar#0010.png"
    pixels = images.pixels if isinstance(images.pixels, torch.Tensor) else images.pixels.read(torch.arange(6))
    assert pixels[:, 0, 0, 0].tolist() == LEVELS
    assert splits(shards) == ()


def test_streamed_and_decoded_shards_are_the_same(shards: Path) -> None:
    streamed, decoded = open_images(shards, stream=True), load(shards)
    assert isinstance(streamed, StreamedSet)
    assert streamed.fingerprint() == decoded.fingerprint()
    assert torch.equal(streamed.level_counts(), decoded.level_counts())
    order = torch.tensor([5, 0, 3, 3, 1])
    assert torch.equal(streamed.pixels.read(order), decoded.images[order])


@pytest.mark.parametrize("pattern", ["part-{000..001}.tar", "{part-000,part-001}.tar"])
def test_patterns_with_braces(shards: Path, pattern: str) -> None:
    assert load(f"{shards}/{pattern}").images[:, 0, 0, 0].tolist() == LEVELS[:4]
    assert load(Path(shards, pattern)).labels is not None
    assert splits(f"{shards}/{pattern}") == ()


def test_one_shard_by_its_path(shards: Path) -> None:
    assert load(shards / "part-002.tar").images[:, 0, 0, 0].tolist() == [20, 21]


def test_class_names_beside_the_shards(shards: Path) -> None:
    (shards / "classes.txt").write_text("\n".join(f"kind {number}" for number in range(13)) + "\n")
    images = load(shards)
    assert len(images.class_names) == 13
    assert images.labels is not None and images.labels.tolist() == [3, 12] * 3
    (shards / "classes.txt").write_text("a\nb\nc\nd\n")
    with pytest.raises(InlayError, match=r"label 12 of the shards from .* is beyond the 4 class names; add the others"):
        load(shards)
    (shards / "classes.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InlayError, match=r"classes\.txt' is not UTF-8 text; write one class name per line"):
        load(shards)


def test_what_the_library_writes_is_read_as_the_library_reads_it(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    file = tmp_path / "written.tar"
    with webdataset.TarWriter(str(file)) as writer:
        for number in range(5):
            pixels = random.integers(0, 256, (5, 7, 3), dtype=np.uint8)
            writer.write(
                {"__key__": f"deep/er.{number}" if number == 4 else f"s{number}", "png": pixels, "cls": number}
            )
    expected = {
        sample["__key__"]: (np.asarray(Image.open(io.BytesIO(sample["png"]))), int(sample["cls"]))
        for sample in webdataset.WebDataset(str(file), shardshuffle=False)
        if "png" in sample
    }
    images = load(file)
    assert len(images) == len(expected) == 4
    for position, name in enumerate(images.names):
        pixels, label = expected[name.partition("#")[2].partition(".")[0]]
        np.testing.assert_array_equal(images.images[position].numpy(), pixels.transpose(2, 0, 1))
        assert images.labels is not None and images.class_names[images.labels[position]] == str(label)


def test_samples_without_labels_and_files_that_are_no_images(tmp_path: Path) -> None:
    files = {
        "readme.txt": b"about",
        "a/1.JPG": picture(200, "JPEG"),
        "a/1.json": b"{}",
        "a/1.depth.png": b"not the image of the sample",
        "a/._1.jpg": b"what a Mac adds",
        "b/1.webp": picture(100, "WEBP"),
    }
    images = load(pack(tmp_path / "x.tar", files))
    assert [name.partition("#")[2] for name in images.names] == ["a/1.JPG", "b/1.webp"]
    assert images.labels is None


def test_links_and_folders_in_a_shard_are_no_files(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        folder = tarfile.TarInfo("a.png")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        name = "ä" * 120 + "/1.png"
        entry = tarfile.TarInfo(name)
        entry.size = len(picture(9))
        archive.addfile(entry, io.BytesIO(picture(9)))
        link = tarfile.TarInfo("2.png")
        link.type, link.linkname = tarfile.SYMTYPE, name
        archive.addfile(link)
    images = load(tmp_path / "x.tar")
    assert images.names == (f"{tmp_path}/x.tar#{name}",)
    assert images.images[0, 0, 0, 0] == 9


def test_an_archive_beside_images_is_no_shard(shards: Path, tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.png").write_bytes(picture(1))
    os.replace(shards / "part-000.tar", tmp_path / "photos" / "download.tar")
    assert load(tmp_path / "photos").class_names == ("ant", "bee")
    os.replace(tmp_path / "photos" / "download.tar", tmp_path / "photos" / "ant" / "download.tar")
    assert len(load(tmp_path / "photos" / "ant")) == 1


def test_damaged_images_are_refused_or_left_out(tmp_path: Path) -> None:
    shard = pack(tmp_path / "x.tar", {"1.png": picture(1), "2.png": picture(2)[:50], "3.png": picture(3)})
    for stream in (True, False):
        with pytest.raises(InlayError, match=r"x\.tar#2\.png' cannot be read as an image .*pass --skip-bad"):
            open_images(shard, stream=stream)
        images = open_images(shard, stream=stream, skip_bad=True)
        assert images.skipped == (f"{shard}#2.png",)
        assert len(images) == 2


def test_a_changed_shard_is_read_anew(shards: Path) -> None:
    before = load(shards)
    pack(shards / "part-001.tar", {"0010.png": picture(77), "0010.cls": b"3"})
    assert load(shards).images[:, 0, 0, 0].tolist() == [0, 1, 77, 20, 21]
    assert before.fingerprint() != load(shards).fingerprint()


def bad_shards() -> list[tuple[Mapping[str, bytes], str]]:
    one = picture(1)
    return [
        ({"readme.txt": b""}, "hold no images; pack files that end in one of"),
        ({"1.png": one, "1.jpg": one}, r"x\.tar#1\.png' has a second image, '1\.jpg'; keep one per sample"),
        ({"1.png": one, "1.PNG": one}, r"x\.tar' holds '1\.PNG' twice; give each sample a name of its own"),
        ({"1.png": one, "1.cls": b"ant"}, r"1\.cls' holds no whole number; write the number of the class"),
        ({"1.png": one, "1.cls": b"-1"}, "contain -1; number classes from 0"),
        ({"1.png": one, "1.cls": b"0", "2.png": one}, r"1\.png' has a \.cls file beside it and .*2\.png' has none"),
        ({"1.png": one, "2.png": one, "2.cls": b"0"}, r"2\.png' has a \.cls file beside it and .*1\.png' has none"),
    ]


@pytest.mark.parametrize(("files", "sentence"), bad_shards())
def test_samples_that_are_refused(tmp_path: Path, files: Mapping[str, bytes], sentence: str) -> None:
    with pytest.raises(InlayError, match=sentence):
        load(pack(tmp_path / "x.tar", files))


def test_shards_that_are_damaged_compressed_or_missing(shards: Path) -> None:
    shard = shards / "part-000.tar"
    whole = shard.read_bytes()
    header_of_second = whole.index(b"0000.cls")
    damaged = {
        "cut in a file": whole[:700],
        "cut in a header": whole[: header_of_second + 100],
        "a header overwritten": whole[:header_of_second] + b"\x55" * 512 + whole[header_of_second + 512 :],
        "nothing": b"",
        "no archive": b"x" * 5000,
    }
    for content in damaged.values():
        shard.write_bytes(content)
        with pytest.raises(InlayError, match=r"part-000\.tar' is damaged or compressed .*; pack it anew as a plain"):
            load(shards)
    with tarfile.open(shard, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("1.png"))
    with pytest.raises(InlayError, match="is damaged or compressed"):
        load(shards)
    with pytest.raises(InlayError, match=r"no shard '.*part-003\.tar'; check the numbers in '.*part-\{000\.\.003\}"):
        load(f"{shards}/part-{{000..003}}.tar")
    with pytest.raises(InlayError, match=r"pattern .* is not understood .*; write one such as shards-\{000\.\.012\}"):
        load(f"{shards}/part-{{000..003.tar")


def test_every_byte_is_where_the_member_says(shards: Path) -> None:
    images = open_images(shards, stream=True)
    assert isinstance(images, StreamedSet)
    for file, level in zip(images.pixels.files, LEVELS, strict=True):
        assert isinstance(file, Member)
        assert file.content() == picture(level)


def test_the_library_is_asked_for_by_name(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("webdataset", "webdataset.shardlists", "webdataset.tariterators"):
        monkeypatch.setitem(sys.modules, name, None)
    for source in (shards, f"{shards}/part-{{000..001}}.tar"):
        with pytest.raises(
            InlayError, match=r'package webdataset; install it with `pip install "inlay\[webdataset\]"`'
        ):
            load(source)
