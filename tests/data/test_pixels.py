import numpy as np
import pytest
import torch
from PIL import Image

from inlay.data.images import ImageSet
from inlay.data.pixels import Size, as_size, check_channels, conform, convert, fit, to_array
from inlay.errors import InlayError


def test_as_size() -> None:
    assert as_size(None) is None
    assert as_size(8) == (8, 8)
    assert as_size((4, 6)) == (4, 6)
    for bad in (0, -3, (4, 0), (1, 2, 3), True, 2.5):
        with pytest.raises(InlayError, match="write one side such as 64"):
            as_size(bad if not isinstance(bad, float) else (bad, bad))  # type: ignore[arg-type]


def test_check_channels() -> None:
    for good in (None, 1, 3):
        check_channels(good)
    for bad in (0, 2, 4):
        with pytest.raises(InlayError, match="write 1 for grey or 3 for colour"):
            check_channels(bad)


def test_luma() -> None:
    picture = Image.new("RGB", (1, 1), (200, 100, 50))
    # 0.299 x 200 + 0.587 x 100 + 0.114 x 50 = 124.2
    assert to_array(convert(picture, 1)).tolist() == [[[124]]]


def test_modes_without_an_8_bit_form_are_refused() -> None:
    with pytest.raises(ValueError, match="floating-point"):
        convert(Image.new("F", (2, 2), 0.5), 3)
    for value in (-1, 65536):
        with pytest.raises(ValueError, match="outside 16 bits"):
            convert(Image.new("I", (2, 2), value), 1)
    assert to_array(convert(Image.new("I", (1, 1), 65535), 1)).item() == 255


@pytest.mark.parametrize(
    ("source", "target", "box"),
    [((4, 8), (4, 4), (2, 0, 6, 4)), ((8, 4), (4, 4), (0, 2, 4, 6)), ((6, 6), (6, 2), (2, 0, 4, 6))],
)
def test_fit_takes_the_centre(source: Size, target: Size, box: tuple[int, int, int, int]) -> None:
    values = np.random.default_rng(0).integers(0, 256, (*source, 3), dtype=np.uint8)
    picture = Image.fromarray(values)
    left, top, right, bottom = box
    np.testing.assert_array_equal(np.asarray(fit(picture, target)), values[top:bottom, left:right])


def test_fit_is_antialiased() -> None:
    stripes = np.zeros((64, 64), dtype=np.uint8)
    stripes[:, ::2] = 255
    small = np.asarray(fit(Image.fromarray(stripes), (8, 8))).astype(int)
    # Sampling without a filter would give pure black or pure white.
    assert small[2:-2, 2:-2].min() > 120 and small[2:-2, 2:-2].max() < 136


def test_conform() -> None:
    grey = ImageSet.from_arrays(np.full((2, 4, 8), 77, dtype=np.uint8), [1, 0])
    assert conform(grey, None, None) is grey
    assert conform(grey, (4, 8), 1) is grey
    colour = conform(grey, (2, 2), 3)
    assert colour.images.shape == (2, 3, 2, 2) and bool((colour.images == 77).all())
    assert colour.labels is grey.labels and colour.names == grey.names
    back = conform(colour, None, 1)
    assert back.images.shape == (2, 1, 2, 2) and bool((back.images == 77).all())


def test_conform_keeps_channels_apart() -> None:
    images = torch.randint(0, 256, (2, 3, 5, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    cropped = conform(ImageSet(images, ("a", "b")), (5, 5), None)
    assert torch.equal(cropped.images, images[..., 2:7])


def test_conform_refuses_other_channels() -> None:
    with pytest.raises(InlayError, match="pass 1 or 3 channels"):
        conform(ImageSet(torch.zeros(1, 4, 2, 2, dtype=torch.uint8), ("a",)), (4, 4), None)
