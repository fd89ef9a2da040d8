import io
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, features

from inlay.data import decode
from inlay.data.decode import common_size, decode_files, decode_image
from inlay.data.listing import IMAGE_SUFFIXES
from inlay.errors import InlayError


def noise(seed: int, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_rgb_is_read_exactly(tmp_path: Path) -> None:
    pixels = noise(0, 5, 7, 3)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    result = decode_image(tmp_path / "a.png")
    assert result.dtype == torch.uint8
    np.testing.assert_array_equal(result.numpy(), pixels.transpose(2, 0, 1))
    with (tmp_path / "a.png").open("rb") as file:
        assert torch.equal(decode_image(file), result)
    assert torch.equal(decode_image(str(tmp_path / "a.png"), size=(5, 7)), result)


def test_grey_and_bilevel(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 90], [180, 255]], dtype=np.uint8)).save(tmp_path / "grey.png")
    assert decode_image(tmp_path / "grey.png", channels=1).tolist() == [[[0, 90], [180, 255]]]
    assert decode_image(tmp_path / "grey.png").tolist() == [[[0, 90], [180, 255]]] * 3
    Image.new("1", (2, 1), 1).save(tmp_path / "bilevel.png")
    assert decode_image(tmp_path / "bilevel.png", channels=1).tolist() == [[[255, 255]]]


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bit_is_scaled_not_clipped(tmp_path: Path, suffix: str) -> None:
    values = np.array([[0, 128, 129], [257 * 100, 65406, 65535]], dtype=np.uint16)
    file = tmp_path / f"deep{suffix}"
    Image.fromarray(values).save(file)
    # 128 / 257 rounds to 0, 129 / 257 to 1, 65406 / 257 = 254.498 to 254.
    assert decode_image(file, channels=1).tolist() == [[[0, 0, 1], [100, 254, 255]]]
    assert decode_image(file).tolist() == [[[0, 0, 1], [100, 254, 255]]] * 3


def test_palette_with_and_without_transparency(tmp_path: Path) -> None:
    picture = Image.new("P", (2, 1))
    picture.putpalette([10, 20, 30, 200, 100, 50])
    picture.putpixel((1, 0), 1)
    picture.save(tmp_path / "opaque.png")
    picture.save(tmp_path / "clear.png", transparency=1)
    assert decode_image(tmp_path / "opaque.png")[:, 0].T.tolist() == [[10, 20, 30], [200, 100, 50]]
    assert decode_image(tmp_path / "clear.png")[:, 0].T.tolist() == [[10, 20, 30], [255, 255, 255]]


def test_alpha_is_laid_on_white(tmp_path: Path) -> None:
    colour = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 51]]], dtype=np.uint8)
    Image.fromarray(colour).save(tmp_path / "rgba.png")
    # An alpha of 51 / 255 = 0.2 over black leaves 0.8 x 255 = 204.
    expected = [[10, 20, 30], [255, 255, 255], [204, 204, 204]]
    assert decode_image(tmp_path / "rgba.png")[:, 0].T.tolist() == expected
    Image.merge("LA", (Image.new("L", (1, 1), 0), Image.new("L", (1, 1), 51))).save(tmp_path / "la.png")
    assert decode_image(tmp_path / "la.png").flatten().tolist() == [204, 204, 204]
    assert decode_image(tmp_path / "la.png", channels=1).flatten().tolist() == [204]
    Image.new("RGB", (1, 1), (1, 2, 3)).save(tmp_path / "key.png", transparency=(1, 2, 3))
    assert decode_image(tmp_path / "key.png").flatten().tolist() == [255, 255, 255]


def test_cmyk(tmp_path: Path) -> None:
    Image.new("CMYK", (16, 16), (255, 0, 0, 0)).save(tmp_path / "cyan.tif")
    assert decode_image(tmp_path / "cyan.tif")[:, 8, 8].tolist() == [0, 255, 255]
    Image.new("CMYK", (16, 16), (0, 0, 0, 255)).save(tmp_path / "black.jpg", quality=100)
    assert int(decode_image(tmp_path / "black.jpg", channels=1).max()) <= 3


def test_exif_rotation(tmp_path: Path) -> None:
    pixels = noise(1, 4, 6, 3)
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("turned.png", "turned.webp"):
        Image.fromarray(pixels).save(tmp_path / name, exif=exif, lossless=True)
        upright = np.rot90(pixels, k=-1).transpose(2, 0, 1)
        np.testing.assert_array_equal(decode_image(tmp_path / name).numpy(), upright)
        assert common_size([tmp_path / name]) == (6, 4)


def test_scaling_and_cropping(tmp_path: Path) -> None:
    pixels = np.zeros((40, 80, 3), dtype=np.uint8)
    pixels[:, 20:60] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert bool((decode_image(tmp_path / "a.png", size=40) == 255).all())
    small = decode_image(tmp_path / "a.png", size=10)
    assert small.shape == (3, 10, 10) and bool((small[..., 1:-1] == 255).all())


def write_many(folder: Path, count: int) -> tuple[list[Path], np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    pixels = noise(2, count, 4, 4, 3)
    files = [folder / f"{number}.png" for number in range(count)]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image).save(file)
    return files, pixels.transpose(0, 3, 1, 2)


def test_parallel_keeps_the_order_and_reports_progress(tmp_path: Path) -> None:
    files, expected = write_many(tmp_path, 100)
    calls: list[tuple[int, int]] = []
    images, good = decode_files(files, (4, 4), 3, on_progress=lambda done, total: calls.append((done, total)))
    np.testing.assert_array_equal(images, expected)
    np.testing.assert_array_equal(images, np.stack([decode_image(file).numpy() for file in files]))
    assert good.all()
    assert calls[-1] == (100, 100) and calls == sorted(calls) and len(calls) > 1


def test_bad_files_are_named_or_skipped(tmp_path: Path) -> None:
    files, expected = write_many(tmp_path, 5)
    files[3].write_bytes(b"this is no picture")
    files[1].write_bytes(files[1].read_bytes()[:60])
    with pytest.raises(InlayError, match=r"1\.png' cannot be read .*pass --skip-bad to leave such files out"):
        decode_files(files, (4, 4), 3)
    images, good = decode_files(files, (4, 4), 3, skip_bad=True)
    assert good.tolist() == [True, False, True, False, True]
    np.testing.assert_array_equal(images, expected[[0, 2, 4]])


needs_avif = pytest.mark.skipif(not features.check("avif"), reason="this build of Pillow reads no AVIF")


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp", "tif", "webp", pytest.param("avif", marks=needs_avif)])
def test_damage_never_escapes_as_another_error(tmp_path: Path, suffix: str) -> None:
    stream = io.BytesIO()
    Image.fromarray(noise(3, 9, 9, 3)).save(stream, format=Image.registered_extensions()[f".{suffix}"])
    whole = stream.getvalue()
    random = np.random.default_rng(4)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole[: random.integers(1, len(whole) + 1)])
        for position in random.integers(0, len(damaged), 4):
            damaged[position] = random.integers(256)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                decode_image(io.BytesIO(bytes(damaged)), size=4)
            except InlayError:
                refused += 1
    assert refused > 0


@pytest.mark.parametrize("suffix", sorted(IMAGE_SUFFIXES - {".avif"}))
def test_every_listed_suffix_can_be_read(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    mode = "1" if suffix == ".pbm" else "L"
    Image.new(mode, (9, 7), 1).save(file)
    assert decode_image(file).shape == (3, 7, 9)
    assert common_size([file]) == (7, 9)


@pytest.mark.parametrize("kind", ["EPS", "ICO", "PCX"])
def test_other_formats_are_not_opened_under_a_borrowed_suffix(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "picture.png"
    Image.new("RGB", (16, 16)).save(file, format=kind)
    with pytest.raises(InlayError, match="no known image format"):
        decode_image(file)
    with file.open("rb") as stream, pytest.raises(InlayError, match="no known image format"):
        decode_image(stream)
    _, good = decode_files([file], (8, 8), 3, skip_bad=True)
    assert not good.any()
    assert common_size([file]) == common_size([])


def test_sentences_of_single_images(tmp_path: Path) -> None:
    with pytest.raises(InlayError, match=r"gone\.png' cannot be read as an image \(no such file or directory\)"):
        decode_image(tmp_path / "gone.png")
    with pytest.raises(InlayError, match=r"the open file' cannot be read as an image .no known image format"):
        decode_image(io.BytesIO(b"nothing"))
    Image.new("F", (2, 2)).save(tmp_path / "float.tif")
    with pytest.raises(InlayError, match="floating-point pixels, save it with 8 or 16 bits"):
        decode_image(tmp_path / "float.tif")


# Pillow warns above its limit and raises above twice the limit; both count as bad.
@pytest.mark.parametrize("limit", [60, 20])
def test_decompression_bombs_are_bad_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(InlayError, match="more pixels than is safe"):
        decode_image(tmp_path / "bomb.png")
    _, good = decode_files([tmp_path / "bomb.png"], (8, 8), 3, skip_bad=True)
    assert not good.any()


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(10, 6), (10, 6)], (6, 10)),
        ([(10, 6), (6, 10)], (8, 8)),
        ([(20, 12), (20, 40), (12, 99)], (16, 16)),
        ([(2, 2), (3, 3)], (8, 8)),
        ([(300, 260), (260, 300)], (224, 224)),
        ([(500, 400), (500, 400)], (224, 224)),
        ([(300, 100), (300, 100)], (100, 300)),
    ],
)
def test_common_size(tmp_path: Path, sizes: list[tuple[int, int]], expected: tuple[int, int]) -> None:
    files = []
    for number, size in enumerate(sizes):
        files.append(tmp_path / f"{number}.png")
        Image.new("L", size).save(files[-1])
    (tmp_path / "bad.png").write_bytes(b"bad")
    assert common_size([*files, tmp_path / "bad.png"]) == expected


def test_an_error_in_the_progress_callback_stops_the_work(tmp_path: Path) -> None:
    files, _ = write_many(tmp_path, 3)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    filters = list(warnings.filters)
    threads = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        decode_files(files * (decode._FILES_PER_TASK * 2), (4, 4), 3, on_progress=stop)
    assert set(threading.enumerate()) <= threads
    assert list(warnings.filters) == filters
