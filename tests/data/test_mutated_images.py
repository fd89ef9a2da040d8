import contextlib
import hashlib
import io
import multiprocessing
import os
import random
import resource
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from inlay.cli.options import BadImage, open_path, read_in_parts
from inlay.data import decode, load
from inlay.data.checkup import examine
from inlay.data.decode import decode_files, decode_image
from inlay.data.listing import IMAGE_SUFFIXES
from inlay.data.pixels import convert
from inlay.errors import InlayError
from inlay.knowledge import InputForm
from mutated_images import bombs, mutated, tiff_that_ends_early, whole_images

FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")
COUNT = 1000
SIDE = 16
FORM = InputForm((SIDE, SIDE), 3, (0.5,) * 3, (0.5,) * 3)
SECONDS_OF_A_HANG = 120
UNLIMITED = "unlimited"


def _content(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _most_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _read(folder: Path) -> dict[str, Any]:
    """What each way of reading makes of the images of a folder, and how much memory it takes."""
    before = _most_megabytes()
    loaded = load(folder, size=SIDE, skip_bad=True, cache=False)
    assert loaded.images.dtype == torch.uint8 and loaded.images.shape[1:] == (3, SIDE, SIDE)
    chosen = load(folder, skip_bad=True, cache=False)
    assert chosen.images.dtype == torch.uint8 and chosen.names == loaded.names
    sentences: dict[str, str] = {}
    predicted: list[str] = []
    for part in read_in_parts([open_path(str(folder), FORM)], FORM, 100):
        if isinstance(part, BadImage):
            sentences[part.source] = part.sentence
        else:
            assert part.images.shape[1:] == (3, SIDE, SIDE)
            predicted += part.names
    found = examine(str(folder))
    return {
        "read": list(loaded.names),
        "skipped": list(loaded.skipped),
        "predicted": predicted,
        "sentences": sentences,
        "examined": [found.images, found.damaged],
        "reasons": found.reasons,
        "megabytes": _most_megabytes() - before,
    }


def _read_aloud(folder: Path, errors: Path, answer: Any) -> None:
    # Decoders in C write to the descriptor, whatever Python calls its stderr.
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    warnings.simplefilter("always")
    answer.send(_read(folder))


def _read_apart(folder: Path) -> dict[str, Any]:
    """Read a folder in a process of its own, which must be quiet and touch no file."""
    errors, before = folder.parent / "errors.txt", _content(folder)
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_read_aloud, args=(folder, errors, sender))
    process.start()
    answered = receiver.poll(SECONDS_OF_A_HANG)
    if not answered:
        os.kill(process.pid or 0, signal.SIGKILL)
    found: dict[str, Any] = receiver.recv() if answered else {}
    process.join()
    assert (process.exitcode, errors.read_text()) == (0, "")
    assert _content(folder) == before and sorted(folder.parent.iterdir()) == [errors, folder]
    return found


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder of whole images, a thousand damaged ones and some that are nothing; and what was made of it."""
    folder, chance = tmp_path_factory.mktemp("thousand") / "images", random.Random(0)
    folder.mkdir()
    whole = whole_images()
    for name, data in whole.items():
        (folder / f"whole-{name}").write_bytes(data)
    for number in range(COUNT):
        name = list(whole)[number % len(whole)]
        stem, suffix = f"{number:04d}-{Path(name).stem}", Path(name).suffix
        suffix = chance.choice(sorted(IMAGE_SUFFIXES)) if chance.random() < 0.1 else suffix
        (folder / f"{stem}{suffix}").write_bytes(mutated(whole[name], chance))
    (folder / "empty.png").touch()
    (folder / "zeros.jpg").write_bytes(bytes(999))
    return folder, _read_apart(folder)


def _names(paths: list[str]) -> set[str]:
    return {Path(path).name for path in paths}


def test_every_damaged_file_is_read_or_named(thousand: tuple[Path, Any]) -> None:
    folder, found = thousand
    names = {file.name for file in folder.iterdir()}
    read, skipped = _names(found["read"]), _names(found["skipped"])
    assert len(names) > COUNT and read | skipped == names and not read & skipped
    assert len(read) > 200 and len(skipped) > 200
    assert {name for name in names if name.startswith("whole-")} <= read
    assert {"empty.png", "zeros.jpg"} <= skipped


def test_all_ways_of_reading_agree_on_what_is_damaged(thousand: tuple[Path, Any]) -> None:
    _, found = thousand
    assert found["predicted"] == found["read"]
    assert sorted(found["sentences"]) == sorted(found["skipped"])
    assert found["examined"] == [len(found["read"]), len(found["skipped"])]
    assert found["reasons"].keys() <= set(found["skipped"])


def test_each_damaged_file_has_one_sentence_that_says_why(thousand: tuple[Path, Any]) -> None:
    _, found = thousand
    for file, sentence in found["sentences"].items():
        assert sentence.startswith(f"'{file}' cannot be read as an image (")
        assert sentence.endswith("); pass a sound PNG, JPEG or similar file.")
        assert "\n" not in sentence and "image (); " not in sentence
    for file, reason in found["reasons"].items():
        assert f" ({reason}); " in found["sentences"][file]


def test_damage_takes_no_more_memory_than_one_whole_image_may(thousand: tuple[Path, Any]) -> None:
    # Large ones are decoded one at a time, with four bytes for each pixel.
    assert thousand[1]["megabytes"] < 4 * (Image.MAX_IMAGE_PIXELS or 0) / 2**20


def test_the_first_damaged_file_stops_those_who_do_not_skip(thousand: tuple[Path, Any]) -> None:
    folder, found = thousand
    with pytest.raises(InlayError, match="pass --skip-bad to leave such files out") as refusal:
        load(folder, size=8, cache=False)
    assert str(refusal.value).startswith(f"'{found['skipped'][0]}' cannot be read as an image")


def test_bombs_are_refused_by_their_headers(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    names = {"whole.png"}
    (folder / "whole.png").write_bytes(whole_images()["plain.png"])
    for name, data in bombs():
        names.add(name)
        (folder / name).write_bytes(data)
    found = _read_apart(folder)
    assert _names(found["read"]) == {"whole.png"} and _names(found["skipped"]) == names - {"whole.png"}
    assert all("(more pixels than is safe to decode); " in sentence for sentence in found["sentences"].values())
    assert found["megabytes"] < 30


def test_rows_that_a_tiff_does_not_have_are_not_made_up() -> None:
    with pytest.raises(InlayError, match=r"\(its strips do not fill its size\)"):
        decode_image(io.BytesIO(tiff_that_ends_early()))


def _read_with_little_memory(file: Path, answer: Any) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (50 << 20),) * 2)
    with contextlib.suppress(MemoryError):
        bytearray(400 << 20)
        answer.send(UNLIMITED)
        return
    try:
        answer.send(str(decode_image(file, 8).shape))
    except InlayError as error:
        answer.send(str(error))


def test_an_image_larger_than_the_memory_is_refused_in_words(tmp_path: Path) -> None:
    file = tmp_path / "large.png"
    Image.new("1", (9000, 9000)).save(file)
    # A new process: what this one has freed already would not be asked for again.
    receiver, sender = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_read_with_little_memory, args=(file, sender))
    process.start()
    assert receiver.poll(SECONDS_OF_A_HANG)
    said = receiver.recv()
    process.join()
    if said == UNLIMITED:
        pytest.skip("the memory of a process cannot be limited here")
    assert "large.png' cannot be read as an image (more memory needed than there is); " in said


def test_large_images_are_decoded_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"{number}.png" for number in range(4)]
    for file in files:
        Image.new("L", (8, 8), 9).save(file)
    alone, met = threading.Lock(), []

    def watched(image: Image.Image, channels: int) -> Image.Image:
        met.append(alone.acquire(blocking=False))
        time.sleep(0.01)
        alone.release()
        return convert(image, channels)

    monkeypatch.setattr(decode, "_LARGE_PIXELS", 63)
    monkeypatch.setattr(decode, "_FILES_PER_TASK", 1)
    monkeypatch.setattr(decode, "decoding_threads", lambda: 4)
    monkeypatch.setattr(decode, "convert", watched)
    pixels, good = decode_files(files, (8, 8), 3)
    assert met == [True] * 4 and good.all() and (pixels == 9).all()
