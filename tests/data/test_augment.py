import colorsys
import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from inlay.data.augment import (
    VIEWS,
    Augmentation,
    Fill,
    _blurred,
    _turned_hue,
    augmentation,
)
from inlay.data.draws import Draws
from inlay.errors import InlayError

FILLS: tuple[Fill, ...] = ("zero", "reflect")


def draws(count: int, key: int = 0) -> Draws:
    return Draws(key, torch.arange(count))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pixel(image: Tensor, channel: int, y: int, x: int, fill: str) -> float:
    """A value of an image [C, H, W] that goes on beyond its edges."""
    height, width = image.shape[1:]
    if fill == "border":
        y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    if fill == "zero" and not (0 <= y < height and 0 <= x < width):
        return 0.0
    while not (0 <= y < height and 0 <= x < width):
        y = -y if y < 0 else 2 * (height - 1) - y if y >= height else y
        x = -x if x < 0 else 2 * (width - 1) - x if x >= width else x
    return image[channel, y, x].item()


def measured(settings: Augmentation, count: int, height: int, width: int, key: int = 0) -> Tensor:
    """Affine maps from places in the views to places in the images, about their centres, [count, 2, 3].

    Bilinear sampling keeps linear ramps, so a view of ramps along x and y tells where each pixel came from.
    """
    x = torch.arange(width, dtype=torch.float64).expand(height, width)
    y = torch.arange(height, dtype=torch.float64)[:, None].expand(height, width)
    ramps = torch.stack([x / width, y / height, torch.ones_like(x)]).expand(count, -1, -1, -1)
    views = settings(ramps, draws(count, key))
    places = torch.stack([x - (width - 1) / 2, y - (height - 1) / 2, torch.ones_like(x)], dim=2)
    maps = []
    for view in views:
        # Half a pixel at a clamped border is no longer on the ramp; neither is what blends with the outside.
        inside = (view[2] > 1 - 1e-9) & (view[0] > 1e-9) & (view[0] < (width - 1) / width - 1e-9)
        inside &= (view[1] > 1e-9) & (view[1] < (height - 1) / height - 1e-9)
        sources = torch.stack([view[0] * width - (width - 1) / 2, view[1] * height - (height - 1) / 2], dim=2)
        assert inside.sum() > 8
        maps.append(torch.linalg.lstsq(places[inside], sources[inside]).solution.T)
    return torch.stack(maps)


def slow_sampling(image: Tensor, affine: Tensor, fill: str) -> Tensor:
    channels, height, width = image.shape
    result = torch.zeros_like(image)
    (a, b, c), (d, e, f) = affine.tolist()
    for channel in range(channels):
        for row in range(height):
            for column in range(width):
                u, v = column - (width - 1) / 2, row - (height - 1) / 2
                x, y = a * u + b * v + c + (width - 1) / 2, d * u + e * v + f + (height - 1) / 2
                left, top = math.floor(x), math.floor(y)
                for dy in (0, 1):
                    for dx in (0, 1):
                        weight = (1 - abs(x - left - dx)) * (1 - abs(y - top - dy))
                        result[channel, row, column] += weight * pixel(image, channel, top + dy, left + dx, fill)
    return result


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("channels", [1, 3])
def test_shift_and_flip_give_every_legal_crop_and_no_other(fill: Fill, channels: int) -> None:
    image = (noise(channels, 6, 7) * 255).byte().float() / 255
    legal = {}
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            for flip in (False, True):
                columns = range(7)[::-1] if flip else range(7)
                crop = [
                    pixel(image, channel, row + dy, column + dx, fill)
                    for channel in range(channels)
                    for row in range(6)
                    for column in columns
                ]
                legal[tuple(crop)] = 0
    assert len(legal) == 50
    bytes_of_image = (image * 255).round().byte()
    views = Augmentation(shift=2, fill=fill, flip=0.5)(bytes_of_image.expand(5000, -1, -1, -1), draws(5000))
    for view in views.flatten(1).tolist():
        legal[tuple(view)] += 1
    # 100 of each are expected, with a standard deviation of 10.
    assert min(legal.values()) > 50 and max(legal.values()) < 150


def test_reflection_of_shifts_beyond_the_image() -> None:
    image = torch.arange(9, dtype=torch.float32).view(1, 1, 3, 3) / 9
    views = Augmentation(shift=7, fill="reflect")(image.expand(200, -1, -1, -1), draws(200))
    rows = {tuple((view[0, 0] * 9).round().remainder(3).int().tolist()) for view in views}
    assert rows == {(0, 1, 2), (1, 2, 1), (2, 1, 0), (1, 0, 1)}


def test_defaults_change_nothing() -> None:
    images = (noise(3, 3, 5, 4) * 255).byte()
    assert torch.equal(Augmentation()(images, draws(3)), images.float() / 255)
    floats = noise(3, 1, 5, 4)
    assert torch.equal(VIEWS["none"](floats, draws(3)), floats)


@pytest.mark.parametrize("fill", FILLS)
def test_affine_identity(fill: Fill) -> None:
    images = noise(3, 3, 8, 6).float()
    still = Augmentation(translate=1e-12, fill=fill)
    torch.testing.assert_close(still(images, draws(3)), images, atol=1e-6, rtol=0)
    mirrored = replace(still, flip=1.0)(images, draws(3))
    torch.testing.assert_close(mirrored, images.flip(3), atol=1e-6, rtol=0)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("name", ["glyph", "weak-crop", "all"])
def test_sampling_equals_the_loops(name: str, fill: Fill) -> None:
    everything = replace(VIEWS["glyph"], shift=1, flip=0.5, crop=(0.5, 1.0))
    settings = replace({**VIEWS, "all": everything}[name], fill=fill)
    images = noise(4, 3, 12, 9)
    views = settings(images, draws(4, key=5))
    maps = measured(replace(settings, fill="zero"), 4, 12, 9, key=5)
    for image, view, affine in zip(images, views, maps, strict=True):
        expected = slow_sampling(image, affine, "border" if name == "weak-crop" else fill)
        torch.testing.assert_close(view, expected, atol=1e-6, rtol=0)


def test_rotation_is_a_rotation_on_images_that_are_not_square() -> None:
    maps = measured(Augmentation(rotate=30), 300, 10, 14)
    linear, offset = maps[:, :, :2], maps[:, :, 2]
    torch.testing.assert_close(linear @ linear.mT, torch.eye(2).double().expand(300, 2, 2), atol=1e-6, rtol=0)
    torch.testing.assert_close(offset, torch.zeros_like(offset), atol=1e-6, rtol=0)
    angles = torch.rad2deg(torch.atan2(linear[:, 1, 0], linear[:, 0, 0]))
    assert torch.linalg.det(linear).min() > 0
    assert -30 <= angles.min() < -28 and 28 < angles.max() <= 30
    assert angles.std().item() == pytest.approx(30 / math.sqrt(3), rel=0.1)


def test_rotation_by_a_quarter_turn() -> None:
    image = noise(1, 3, 6, 6)
    # Among so many angles some come close to a quarter turn either way.
    views = Augmentation(rotate=90)(image.expand(4000, -1, -1, -1), draws(4000))
    for turns in (1, -1):
        distance = (views - image.rot90(turns, (2, 3))).abs().amax(dim=(1, 2, 3)).min()
        assert distance < 0.01


def test_ranges_of_scale_shear_and_translation() -> None:
    stretch = measured(Augmentation(scale=0.3), 300, 12, 10)[:, [0, 1], [0, 1]].log()
    assert -0.3 <= stretch.min() < -0.28 and 0.28 < stretch.max() <= 0.3 + 1e-6
    assert torch.corrcoef(stretch.T)[0, 1].abs() < 0.2
    shear = measured(Augmentation(shear=0.4), 300, 12, 10)
    assert -0.4 <= shear[:, 0, 1].min() < -0.37 and 0.37 < shear[:, 0, 1].max() <= 0.4 + 1e-6
    torch.testing.assert_close(shear[:, 1, :2], torch.tensor([0.0, 1]).double().expand(300, 2), atol=1e-6, rtol=0)
    moves = measured(Augmentation(translate=0.2), 300, 12, 10)[:, :, 2] / torch.tensor([10.0, 12.0])
    assert -0.2 - 1e-6 <= moves.min() < -0.19 and 0.19 < moves.max() <= 0.2 + 1e-6


def test_boxes_of_crops() -> None:
    height, width = 24, 20
    maps = measured(Augmentation(crop=(0.3, 0.9)), 300, height, width)
    sides = maps[:, [0, 1], [0, 1]] * torch.tensor([width, height])
    area, aspect = sides.prod(dim=1) / (height * width), sides[:, 0] / sides[:, 1]
    assert 0.3 - 1e-6 <= area.min() < 0.33 and 0.85 < area.max() <= 0.9 + 1e-6
    assert 0.75 - 1e-6 <= aspect.min() < 0.77 and 1.25 < aspect.max() <= 4 / 3 + 1e-6
    room = (torch.tensor([width, height]) - sides) / 2
    assert (maps[:, :, 2].abs() <= room + 1e-6).all()
    assert (maps[:, :, 2].abs() / room).max() > 0.95


def test_a_box_that_cannot_fit_becomes_the_largest_allowed() -> None:
    square = noise(5, 1, 8, 8)
    torch.testing.assert_close(Augmentation(crop=(1, 1))(square, draws(5)), square, atol=1e-6, rtol=0)
    # In an image of 12 x 36 the widest box is 12 x 16.
    maps = measured(Augmentation(crop=(1, 1)), 5, 12, 36)
    expected = torch.tensor([16 / 36, 1.0]).double().expand(5, 2)
    torch.testing.assert_close(maps[:, [0, 1], [0, 1]], expected, atol=1e-6, rtol=0)


def test_brightness() -> None:
    images = torch.full((2000, 1, 2, 2), 0.5)
    views = Augmentation(brightness=0.4)(images, draws(2000))
    factors = views[:, 0, 0, 0] / 0.5
    assert torch.equal(views, views[:, :, :1, :1].expand_as(views))
    assert 0.6 <= factors.min() < 0.61 and 1.39 < factors.max() <= 1.4
    assert factors.mean().item() == pytest.approx(1, abs=0.02)
    assert Augmentation(brightness=3)(images, draws(2000)).max() == 1


@pytest.mark.parametrize("field", ["contrast", "saturation"])
def test_contrast_and_saturation_move_values_from_a_centre(field: str) -> None:
    images = 0.4 + 0.2 * noise(200, 3, 4, 5)
    views = Augmentation(**cast(Any, {field: 0.5}))(images, draws(200))
    factors = []
    for image, view in zip(images, views, strict=True):
        grey = 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]
        centre = grey if field == "saturation" else grey.mean()
        factor = ((view - centre) / (image - centre))[0, 0, 0]
        torch.testing.assert_close(view, centre + factor * (image - centre))
        factors.append(factor.item())
    assert 0.5 <= min(factors) < 0.53 and 1.47 < max(factors) <= 1.5


def test_hue_of_red() -> None:
    red = torch.tensor([1.0, 0, 0]).view(1, 3, 1, 1)
    views = Augmentation(hue=0.1)(red.expand(500, 3, 2, 2), draws(500))
    hues = [(colorsys.rgb_to_hsv(*view[:, 0, 0].tolist())[0] + 0.5) % 1 - 0.5 for view in views]
    assert -0.1 - 1e-6 <= min(hues) < -0.097 and 0.097 < max(hues) <= 0.1 + 1e-6
    for turns, colour in ((1 / 3, (0.0, 1.0, 0.0)), (-1 / 3, (0.0, 0.0, 1.0)), (1 / 6, (1.0, 1.0, 0.0))):
        turned = _turned_hue(red, torch.tensor([turns])).flatten()
        torch.testing.assert_close(turned, torch.tensor(colour), atol=1e-6, rtol=0)


def test_hue_equals_colorsys() -> None:
    # Few levels make channels that are equal, and greys.
    images = (noise(6, 3, 8, 8) * 4).floor() / 3
    turns = noise(6, seed=1) - 0.5
    turned = _turned_hue(images, turns)
    for image in range(6):
        for y in range(8):
            for x in range(8):
                hue, saturation, value = colorsys.rgb_to_hsv(*images[image, :, y, x].tolist())
                expected = colorsys.hsv_to_rgb((hue + turns[image].item()) % 1, saturation, value)
                assert turned[image, :, y, x].tolist() == pytest.approx(expected, abs=1e-9)


def test_jitter_is_all_or_nothing() -> None:
    images = 0.3 + 0.4 * noise(1000, 3, 2, 2)
    settings = Augmentation(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, jitter_probability=0.8)
    views = settings(images, draws(1000))
    untouched = (views == images).flatten(1)
    assert untouched.all(dim=1).float().mean().item() == pytest.approx(0.2, abs=0.04)
    assert ((views >= 0) & (views <= 1)).all()


def test_grey_channels_are_equal() -> None:
    images = noise(1000, 3, 2, 2)
    views = Augmentation(grey=0.3)(images, draws(1000))
    grey = (views == views[:, :1]).flatten(1).all(dim=1)
    assert grey.float().mean().item() == pytest.approx(0.3, abs=0.05)
    assert torch.equal(views[~grey], images[~grey])
    luminance = 0.299 * images[:, 0] + 0.587 * images[:, 1] + 0.114 * images[:, 2]
    torch.testing.assert_close(views[grey, 0], luminance[grey], atol=1e-6, rtol=0)


def test_one_channel_has_no_colour() -> None:
    images = noise(20, 1, 5, 5)
    views = Augmentation(saturation=0.4, hue=0.1, grey=0.5)(images, draws(20))
    torch.testing.assert_close(views, images)


@pytest.mark.parametrize(("side", "reach"), [(4, 1), (32, 1), (50, 2), (64, 3)])
def test_blur_equals_the_loops(side: int, reach: int) -> None:
    image = noise(1, side, side)
    blurred = _blurred(image.expand(2, 1, -1, -1), torch.tensor([0.8, 2.0], dtype=torch.float64))
    for number, sigma in enumerate((0.8, 2.0)):
        weights = {step: math.exp(-(step**2) / (2 * sigma**2)) for step in range(-reach, reach + 1)}
        total = sum(weights.values()) ** 2
        for y, x in ((0, 0), (1, side - 1), (side // 2, 2), (side - 2, side // 2)):
            expected = sum(
                weights[dy] * weights[dx] * pixel(image, 0, y + dy, x + dx, "reflect") / total
                for dy in weights
                for dx in weights
            )
            assert blurred[number, 0, y, x].item() == pytest.approx(expected, abs=1e-12)


def test_share_and_strength_of_blur() -> None:
    spike = torch.zeros(1000, 1, 9, 9)
    spike[:, :, 4, 4] = 1
    views = Augmentation(blur=0.5)(spike, draws(1000))
    peaks = views[:, 0, 4, 4]
    # A deviation below 0.29 pixels, in the lowest tenth of the range, leaves 0.99 of a spike in its place.
    assert (peaks < 0.99).float().mean().item() == pytest.approx(0.5 * (1 - 0.1), abs=0.06)
    next_to_peak = math.exp(-1 / (2 * 2.0**2))
    assert peaks.min().item() == pytest.approx(1 / (1 + 2 * next_to_peak) ** 2, abs=0.01)
    torch.testing.assert_close(views.sum(dim=(1, 2, 3)), torch.ones(1000))


@pytest.mark.parametrize("name", list(VIEWS))
@pytest.mark.parametrize("channels", [1, 3])
def test_views_follow_their_draws_alone(name: str, channels: int) -> None:
    images = (noise(16, channels, 10, 8) * 255).byte()
    before = torch.random.get_rng_state()
    first, again, other = (augmentation(name)(images, draws(16, key)) for key in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.shape == images.shape and first.dtype == torch.float32
    assert first.min() >= 0 and first.max() <= 1
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name == "none")
    chosen = torch.tensor([11, 2, 2, 7])
    assert torch.equal(augmentation(name)(images[chosen], Draws(1, chosen)), first[chosen])


@pytest.mark.parametrize("name", [*VIEWS, "blur"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_memory_format_and_type(name: str, dtype: torch.dtype) -> None:
    settings = {**VIEWS, "blur": Augmentation(blur=0.5)}[name]
    colour = (noise(8, 3, 10, 6) * 255).byte() if dtype == torch.uint8 else noise(8, 3, 10, 6).to(dtype)
    views = settings(colour, draws(8))
    assert views.dtype == torch.promote_types(dtype, torch.float32)
    assert views.is_contiguous(memory_format=torch.channels_last)
    last = colour.contiguous(memory_format=torch.channels_last)
    kept = last.clone()
    torch.testing.assert_close(settings(last, draws(8)), views)
    assert torch.equal(last, kept)
    assert settings(colour[:, :1], draws(8)).is_contiguous()


@pytest.mark.parametrize("name", ["weak", "weak-crop", "strong", "glyph"])
def test_views_are_one_graph(name: str) -> None:
    def view(images: Tensor, key: Tensor, indices: Tensor) -> Tensor:
        return VIEWS[name](images, Draws(key, indices))

    inputs = (noise(4, 3, 8, 8) * 255).byte(), torch.tensor(2**40 + 5), torch.tensor([9, 4, 100, 3])
    compiled = torch.compile(view, fullgraph=True, dynamic=False, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), view(*inputs))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(VIEWS))
def test_same_views_on_another_device(name: str) -> None:
    images = noise(16, 3, 10, 8).float()
    there = VIEWS[name](images.cuda(), Draws(0, torch.arange(16, device="cuda")))
    torch.testing.assert_close(there.cpu(), VIEWS[name](images, draws(16)), atol=1e-4, rtol=0)


def test_unknown_names_are_told_the_others() -> None:
    with pytest.raises(InlayError, match="no augmentation 'week'; write one of none, weak, weak-reflect"):
        augmentation("week")


def test_scaled() -> None:
    settings = Augmentation(shift=5, flip=0.5, crop=(0.2, 1.0), rotate=20, hue=0.1, grey=0.2)
    half = settings.scaled(0.5)
    assert half.shift == 2 and half.crop == pytest.approx((0.6, 1.0))
    halves = (half.flip, half.rotate, half.hue, half.jitter_probability, half.grey)
    assert halves == pytest.approx((0.25, 10, 0.05, 0.5, 0.1))
    assert settings.scaled(1) == settings
    images = noise(8, 3, 6, 6)
    assert torch.equal(settings.scaled(0)(images, draws(8)), images)
    with pytest.raises(ValueError, match="strength"):
        settings.scaled(1.5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("shift", -1), ("shift", 1.5), ("fill", "mirror"), ("flip", 1.1)),
        *(("crop", (0.0, 1.0)), ("crop", (0.6, 0.5)), ("crop", (0.5, 1.1))),
        *(("rotate", -1.0), ("scale", math.inf), ("translate", math.nan), ("hue", 0.6)),
        *(("jitter_probability", -0.1), ("blur", math.nan)),
    ],
)
def test_rejects_bad_fields(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} must"):
        Augmentation(**cast(Any, {field: value}))


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 2, 8, 8), (1, 3, 1, 8)])
def test_rejects_other_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"images must be \[B, 1 or 3, H, W\]"):
        VIEWS["weak"](torch.zeros(shape), draws(1))
    with pytest.raises(ValueError, match="uint8 or floats"):
        VIEWS["weak"](torch.zeros(1, 3, 8, 8, dtype=torch.int64), draws(1))
