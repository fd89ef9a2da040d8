from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from inlay.data.augment import VIEWS, Augmentation
from inlay.data.auto_augment import CIFAR10_POLICY, Step, auto_augmented
from inlay.data.draws import Draws

_NOTHING = Step("invert", 0.0, 0)
_FILL = (128, 128, 128)
_AFFINE, _BILINEAR = Image.Transform.AFFINE, Image.Resampling.BILINEAR


def _draws(count: int, key: int = 0) -> Draws:
    return Draws(key, torch.arange(count))


def _pixels() -> Tensor:
    """A colour image whose levels are not spread evenly, 20 x 24."""
    noise = torch.rand(3, 20, 24, generator=torch.Generator().manual_seed(0)) ** 2
    ramp = torch.linspace(0, 1, 24).expand(3, 20, 24)
    return (30 + 190 * (0.4 * noise + 0.6 * ramp)).byte()


def _picture(pixels: Tensor) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))


def _values(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255


def _views(step: Step, count: int = 12) -> Tensor:
    images = (_pixels() / 255).expand(count, -1, -1, -1)
    return auto_augmented(images, _draws(count), [(step, _NOTHING)])


def _affine(picture: Image.Image, data: tuple[float, ...]) -> Image.Image:
    return picture.transform(picture.size, _AFFINE, data, fillcolor=_FILL)


_PLAIN: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "invert": lambda picture, _: ImageOps.invert(picture),
    "solarize": lambda picture, strength: ImageOps.solarize(picture, int(np.ceil(strength))),
    "posterize": lambda picture, strength: ImageOps.posterize(picture, int(strength)),
    "equalize": lambda picture, _: ImageOps.equalize(picture),
    "autocontrast": lambda picture, _: ImageOps.autocontrast(picture),
}
_SIGNED: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "colour": lambda picture, strength: ImageEnhance.Color(picture).enhance(1 + strength),
    "contrast": lambda picture, strength: ImageEnhance.Contrast(picture).enhance(1 + strength),
    "brightness": lambda picture, strength: ImageEnhance.Brightness(picture).enhance(1 + strength),
    "sharpness": lambda picture, strength: ImageEnhance.Sharpness(picture).enhance(1 + strength),
    "translate-x": lambda picture, strength: _affine(picture, (1, 0, strength * picture.width, 0, 1, 0)),
    "translate-y": lambda picture, strength: _affine(picture, (1, 0, 0, 0, 1, strength * picture.height)),
}
# Levels by which rounding in the reference may differ.
_ROUNDING = {"autocontrast": 1, "colour": 1.5, "contrast": 1.5, "brightness": 1, "sharpness": 1.5}


@pytest.mark.parametrize("name", list(_PLAIN))
@pytest.mark.parametrize("magnitude", [2, 7])
def test_changes_of_levels_equal_those_of_pillow(name: str, magnitude: int) -> None:
    step = Step(name, 1.0, magnitude)
    expected = _values(_PLAIN[name](_picture(_pixels()), step.strength))
    torch.testing.assert_close(
        _views(step), expected.expand(12, -1, -1, -1), atol=_ROUNDING.get(name, 0) / 255 + 1e-6, rtol=0
    )


@pytest.mark.parametrize("name", list(_SIGNED))
@pytest.mark.parametrize("magnitude", [3, 9])
def test_changes_either_way_equal_those_of_pillow(name: str, magnitude: int) -> None:
    step = Step(name, 1.0, magnitude)
    picture = _picture(_pixels())
    limit = _ROUNDING.get(name, 0) / 255 + 1e-6
    both = [_values(_SIGNED[name](picture, sign * step.strength)) for sign in (1, -1)]
    near = torch.stack([(_views(step) - expected).abs().amax(dim=(1, 2, 3)) < limit for expected in both])
    assert torch.equal(near.sum(dim=0), torch.ones(12, dtype=torch.int64)) and near.any(dim=1).all()


@pytest.mark.parametrize("name", ["rotate", "shear-y"])
def test_sampled_changes_equal_those_of_pillow_inside_the_image(name: str) -> None:
    step = Step(name, 1.0, 8)

    def moved(picture: Image.Image, sign: int) -> Tensor:
        if name == "rotate":
            return _values(picture.rotate(sign * step.strength, _BILINEAR))
        return _values(picture.transform(picture.size, _AFFINE, (1, 0, 0, sign * step.strength, 1, 0), _BILINEAR))

    # Beside the edges of the image the reference repeats them, where here they fade to grey.
    inside = auto_augmented(torch.ones(12, 3, 20, 24), _draws(12), [(step, _NOTHING)]) == 1
    assert 0.5 < inside.float().mean() < 0.95
    views, near = _views(step), []
    for sign in (1, -1):
        away = ((views - moved(_picture(_pixels()), sign)).abs() * inside).amax(dim=(1, 2, 3))
        near.append(away < 1.5 / 255)
    assert (near[0] ^ near[1]).all() and near[0].any() and near[1].any()


def test_what_comes_from_outside_is_grey() -> None:
    views = _views(Step("shear-y", 1.0, 9), 40)
    right = views[:, :, :, -1]
    # The right edge moves by 0.3 of the width, which is 7 pixels, up or down.
    grey = (right - 128 / 255).abs().amax(dim=1) < 1e-6
    assert torch.equal(grey[:, :6].all(dim=1), ~grey[:, -6:].all(dim=1))
    assert not grey[:, 8:12].any()


def test_steps_follow_each_other_with_their_probabilities() -> None:
    images = torch.full((4000, 1, 4, 4), 0.25)
    images[:, :, 0] = 0.5
    # The first step stretches the two levels to 1 and 0, the second swaps light and dark.
    policy = [(Step("autocontrast", 0.4, 0), Step("invert", 0.3, 0)), (_NOTHING, _NOTHING)]
    views = auto_augmented(images, _draws(4000), policy)
    kinds = {(0.5, 0.25): 0.5 + 0.5 * 0.6 * 0.7, (1.0, 0.0): 0.5 * 0.4 * 0.7, (0.5, 0.75): 0.5 * 0.6 * 0.3}
    kinds[(0.0, 1.0)] = 0.5 * 0.4 * 0.3
    found = [tuple(view) for view in torch.stack([views[:, 0, 0, 0], views[:, 0, 3, 3]], dim=1).tolist()]
    assert {*found} == {*kinds}
    for kind, share in kinds.items():
        assert found.count(kind) / 4000 == pytest.approx(share, abs=0.03)


def test_flat_images_stay_in_range() -> None:
    for value in (0.0, 0.4, 1.0):
        views = auto_augmented(torch.full((300, 3, 2, 5), value), _draws(300))
        assert views.isfinite().all() and views.min() >= 0 and views.max() <= 1


def test_policy_of_the_paper() -> None:
    assert len(CIFAR10_POLICY) == 25
    steps = [step for pair in CIFAR10_POLICY for step in pair]
    assert all(0 <= step.probability <= 1 and 0 <= step.magnitude <= 9 for step in steps)
    strengths = {(step.operation, step.magnitude): step.strength for step in steps}
    assert strengths["rotate", 2] == pytest.approx(20 / 3)
    assert strengths["posterize", 7] == 5
    assert strengths["solarize", 2] == pytest.approx(256 * 7 / 9)
    assert strengths["translate-y", 9] == pytest.approx(150 / 331)
    assert strengths["colour", 7] == pytest.approx(0.7)


def test_views_of_the_policy_are_one_graph() -> None:
    def view(images: Tensor, key: Tensor, indices: Tensor) -> Tensor:
        return VIEWS["weak-auto"](images, Draws(key, indices))

    inputs = _pixels().expand(4, -1, -1, -1), torch.tensor(2**40 + 5), torch.tensor([9, 4, 100, 3])
    compiled = torch.compile(view, fullgraph=True, dynamic=False, backend="eager")
    torch.testing.assert_close(compiled(*inputs), view(*inputs))


def test_probability_of_the_whole() -> None:
    images = (_pixels() / 255).expand(600, -1, -1, -1)
    untouched = (Augmentation(auto=0.5)(images, _draws(600)) == images).flatten(1).all(dim=1)
    always = (Augmentation(auto=1.0)(images, _draws(600)) == images).flatten(1).all(dim=1)
    assert torch.equal(always & untouched, always)
    assert untouched.float().mean().item() == pytest.approx(0.5 + 0.5 * always.float().mean().item(), abs=0.08)
