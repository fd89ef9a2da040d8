import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from inlay.review.sheets import GAP, data_uri, sheet, thumbnails


def pictures(count: int, channels: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(("channels", "mode"), [(1, "LA"), (3, "RGBA")])
@pytest.mark.parametrize(("count", "columns", "scale"), [(5, 3, 2), (4, 4, 1), (2, 6, 3), (7, 1, 1)])
def test_every_pixel_is_where_it_belongs(channels: int, mode: str, count: int, columns: int, scale: int) -> None:
    height, width = 3, 2
    images = pictures(count, channels, height, width)
    used, rows = min(columns, count), -(-count // columns)
    wide, high = used * width * scale + (used - 1) * GAP, rows * height * scale + (rows - 1) * GAP
    expected = np.zeros((high, wide, channels + 1), dtype=np.uint8)
    for i in range(count):
        left, top = (i % used) * (width * scale + GAP), (i // used) * (height * scale + GAP)
        for y in range(height * scale):
            for x in range(width * scale):
                pixel = images[i, :, y // scale, x // scale]
                expected[top + y, left + x] = [*pixel.tolist(), 255]

    shown = Image.open(io.BytesIO(sheet(images, columns, scale)))

    assert (shown.format, shown.mode, shown.size) == ("PNG", mode, (wide, high))
    np.testing.assert_array_equal(np.asarray(shown), expected)


def test_data_uri_holds_the_same_bytes() -> None:
    png = sheet(pictures(2, 1, 4, 4), 2, 1)
    head, body = data_uri(png).split(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(body) == png


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 1, 4, 4),
        torch.zeros(1, 4, 4, dtype=torch.uint8),
        torch.zeros(2, 2, 4, 4, dtype=torch.uint8),
        torch.zeros(0, 1, 4, 4, dtype=torch.uint8),
    ],
)
def test_what_is_not_a_set_of_pictures_is_refused(images: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="picture"):
        sheet(images, 2, 1)
    with pytest.raises(ValueError, match="picture"):
        thumbnails(images, 2)


@pytest.mark.parametrize(("columns", "scale"), [(0, 1), (1, 0)])
def test_numbers_below_one_are_refused(columns: int, scale: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        sheet(pictures(1, 1, 2, 2), columns, scale)
    with pytest.raises(ValueError, match="at least 1"):
        thumbnails(pictures(1, 1, 2, 2), 0)


def test_thumbnails_average_blocks_and_partial_blocks() -> None:
    images = pictures(2, 3, 5, 4)
    small = thumbnails(images, 2)
    assert small.dtype == torch.uint8
    assert small.shape == (2, 3, 2, 2)
    for i in range(2):
        for c in range(3):
            for y in range(2):
                for x in range(2):
                    block = images[i, c, 3 * y : 3 * y + 3, 3 * x : 3 * x + 3].double()
                    assert abs(small[i, c, y, x].item() - block.mean().item()) <= 0.5 + 1e-4


def test_small_pictures_are_left_alone() -> None:
    images = pictures(2, 1, 4, 3)
    assert torch.equal(thumbnails(images, 4), images)
