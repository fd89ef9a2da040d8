import pytest
import torch

from inlay.data.augment import VIEWS, Augmentation
from inlay.data.draws import Draws


@pytest.mark.parametrize("side", [1, 4, 5, 40])
def test_squares_are_cut_out_about_every_pixel_alike(side: int) -> None:
    height, width, count = 6, 7, 4200
    legal: dict[tuple[float, ...], int] = {}
    chances: dict[tuple[float, ...], int] = {}
    for row in range(height):
        for column in range(width):
            mask = torch.ones(height, width)
            top, left = row - side // 2, column - side // 2
            for y in range(max(top, 0), min(top + side, height)):
                for x in range(max(left, 0), min(left + side, width)):
                    mask[y, x] = 0
            key = tuple(mask.flatten().tolist())
            legal[key], chances[key] = 0, chances.get(key, 0) + 1
    views = Augmentation(cutout=side)(torch.ones(count, 3, height, width), Draws(0, torch.arange(count)))
    assert torch.equal(views, views[:, :1].expand_as(views))
    for view in views[:, 0].flatten(1).tolist():
        legal[tuple(view)] += 1
    for key, found in legal.items():
        expected = count / (height * width) * chances[key]
        assert abs(found - expected) < 6 * expected**0.5


def test_what_is_left_is_the_image() -> None:
    images = torch.rand(50, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    views = Augmentation(cutout=3)(images, Draws(3, torch.arange(50)))
    assert (views == 0).flatten(1).sum(dim=1).max() == 9
    assert torch.equal(views[views > 0], images[views > 0])


def test_side_is_a_whole_number_that_is_scaled() -> None:
    with pytest.raises(ValueError, match="cutout must be a whole number"):
        Augmentation(cutout=-1)
    half = VIEWS["weak-auto"].scaled(0.5)
    assert (half.cutout, half.auto, half.shift) == (8, 0.5, 2)
