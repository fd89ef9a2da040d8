import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inlay.data.images import fingerprint_of
from inlay.data.survey import survey, surveyed_size
from inlay.errors import InlayError


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)
    paths = [tmp_path / f"{number}.png" for number in range(40)]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    return paths


def test_facts_against_slow_counting(files: list[Path]) -> None:
    found = survey(files, None, 3)
    counts = np.zeros((3, 256), dtype=np.int64)
    for position, file in enumerate(files):
        image = np.asarray(Image.open(file)).transpose(2, 0, 1)
        assert f"{found.fingerprints[position]:016x}" == fingerprint_of(image)
        for channel in range(3):
            for level in image[channel].flatten():
                counts[channel, level] += 1
    np.testing.assert_array_equal(found.level_counts, counts)
    assert found.size == (6, 5) and found.good.all()


def test_damaged_files_have_no_part_in_the_facts(files: list[Path]) -> None:
    whole = survey(files[:3] + files[4:], None, 3)
    files[3].write_bytes(b"bad")
    found = survey(files, None, 3, skip_bad=True)
    assert np.flatnonzero(~found.good).tolist() == [3]
    np.testing.assert_array_equal(found.fingerprints, whole.fingerprints)
    np.testing.assert_array_equal(found.level_counts, whole.level_counts)
    with pytest.raises(InlayError, match=r"3\.png' cannot be read as an image"):
        survey(files, None, 3)


def test_the_size_of_an_earlier_survey_is_known(files: list[Path]) -> None:
    assert surveyed_size(files, None, 3) is None
    survey(files, None, 3)
    assert surveyed_size(files, None, 3) == (6, 5)
    assert surveyed_size(files, None, 1) is None
    assert surveyed_size(files[1:], None, 3) is None


def test_images_are_not_kept(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    decoded = 400 * 3 * 64 * 64
    tracemalloc.start()
    survey([tmp_path / "a.png"] * 400, (64, 64), 3, cache=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < decoded / 2
