import os
import time
from pathlib import Path

import numpy as np
import PIL
import pytest

from inlay.data.cache import cache_folder, cache_key, read_cache, write_cache

PIXELS = np.arange(2 * 3 * 2 * 2, dtype=np.uint8).reshape(2, 3, 2, 2)
GOOD = np.array([True, False, True])


def test_what_is_written_is_read(cache_of_its_own: Path) -> None:
    assert read_cache("k", 3) is None
    write_cache("k", PIXELS, GOOD)
    stored = read_cache("k", 3)
    assert stored is not None
    np.testing.assert_array_equal(stored[0], PIXELS)
    np.testing.assert_array_equal(stored[1], GOOD)
    assert [file.name for file in cache_of_its_own.iterdir()] == ["k.npy"]
    assert read_cache("k", 4) is None


def test_plain_numpy_reads_the_images(cache_of_its_own: Path) -> None:
    write_cache("k", PIXELS, GOOD)
    np.testing.assert_array_equal(np.load(cache_of_its_own / "k.npy"), PIXELS)


def test_any_damaged_byte_or_cut_is_noticed(cache_of_its_own: Path) -> None:
    write_cache("k", PIXELS, GOOD)
    file = cache_of_its_own / "k.npy"
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert read_cache("k", 3) is None
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        file.write_bytes(damaged)
        stored = read_cache("k", 3)
        # Damage to the padding of a header changes nothing.
        assert stored is None or (np.array_equal(stored[0], PIXELS) and np.array_equal(stored[1], GOOD))


def test_a_mask_that_names_other_files_is_noticed(cache_of_its_own: Path) -> None:
    write_cache("k", PIXELS, GOOD)
    file = cache_of_its_own / "k.npy"
    whole = file.read_bytes()
    assert whole.count(GOOD.tobytes()) == 1
    file.write_bytes(whole.replace(GOOD.tobytes(), GOOD[[0, 2, 1]].tobytes()))
    assert read_cache("k", 3) is None


def test_a_job_without_a_readable_file(cache_of_its_own: Path) -> None:
    write_cache("k", PIXELS[:0], np.zeros(3, dtype=np.bool_))
    stored = read_cache("k", 3)
    assert stored is not None and stored[0].shape == (0, 3, 2, 2) and stored[1].tolist() == [False] * 3


def test_files_of_killed_runs_are_swept_after_a_day(cache_of_its_own: Path) -> None:
    hours = {"inlay-old.part": 25, "inlay-under-way.part": 23, "download.part": 25, "stored.npy": 25}
    for name, age in hours.items():
        (cache_of_its_own / name).write_bytes(b"")
        os.utime(cache_of_its_own / name, times=(time.time() - age * 3600,) * 2)
    write_cache("k", PIXELS, GOOD)
    left = {file.name for file in cache_of_its_own.iterdir()}
    assert left == {"inlay-under-way.part", "download.part", "stored.npy", "k.npy"}


def test_a_folder_that_cannot_be_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "file" / "cache"))
    write_cache("k", PIXELS, GOOD)
    assert read_cache("k", 3) is None


def test_nothing_is_left_behind_when_the_file_cannot_be_put_in_place(cache_of_its_own: Path) -> None:
    (cache_of_its_own / "k.npy" / "in the way").mkdir(parents=True)
    write_cache("k", PIXELS, GOOD)
    assert [file.name for file in cache_of_its_own.iterdir()] == ["k.npy"]
    assert read_cache("k", 3) is None


def test_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache_of_its_own: Path) -> None:
    assert cache_folder() == cache_of_its_own
    monkeypatch.delenv("INLAY_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "inlay"


def test_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = tmp_path / "a.png", tmp_path / "b.png"
    a.write_bytes(b"1")
    b.write_bytes(b"2")
    keys = [
        cache_key([a, b], None, 3),
        cache_key([b, a], None, 3),
        cache_key([a], None, 3),
        cache_key([a, b], (8, 8), 3),
        cache_key([a, b], None, 1),
    ]
    status = a.stat()
    os.utime(a, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    keys.append(cache_key([a, b], None, 3))
    a.write_bytes(b"longer")
    os.utime(a, ns=(status.st_atime_ns, status.st_mtime_ns))
    keys.append(cache_key([a, b], None, 3))
    with monkeypatch.context() as patch:
        patch.setattr(PIL, "__version__", "0.1")
        keys.append(cache_key([a, b], None, 3))
    a.unlink()
    keys.append(cache_key([a, b], None, 3))
    assert len(set(keys)) == len(keys)
    monkeypatch.chdir(tmp_path)
    assert cache_key([Path("a.png"), Path("b.png")], None, 3) == keys[-1]
