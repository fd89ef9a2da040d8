import math

import pytest
import torch
from torch import Tensor

from inlay.increments.pooled_distillation import flat_distillation, growth_factor, pooled_distillation


def _maps(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


SHAPES = ((3, 2, 4, 5), (3, 4, 2, 1))


def _unit(values: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]


def _strips(image: list[list[list[float]]]) -> list[float]:
    over_width = [sum(pixel**2 for pixel in row) for channel in image for row in channel]
    over_height = [sum(row[x] ** 2 for row in channel) for channel in image for x in range(len(channel[0]))]
    return _unit(over_width + over_height)


def _reference(current: list[Tensor], frozen: list[Tensor]) -> float:
    layers = []
    for new, old in zip(current, frozen, strict=True):
        pairs = zip(new.tolist(), old.tolist(), strict=True)
        layers.append(sum(math.dist(_strips(a), _strips(b)) for a, b in pairs) / len(new))
    return sum(layers) / len(layers)


def test_pooled_distillation_equals_the_loop_reference() -> None:
    current, frozen = _maps(1, *SHAPES), _maps(2, *SHAPES)
    assert pooled_distillation(current, frozen).item() == pytest.approx(_reference(current, frozen), rel=1e-12)


def test_pooled_distillation_of_one_pixel_by_hand() -> None:
    # Each square appears once per axis: the unit vectors are (9, 16, 9, 16) / √674 and (1, 0, 1, 0) / √2.
    current = torch.tensor([3.0, -4.0], dtype=torch.float64).view(1, 2, 1, 1)
    frozen = torch.tensor([2.0, 0.0], dtype=torch.float64).view(1, 2, 1, 1)
    wanted = math.sqrt(2 - 2 * 18 / math.sqrt(674 * 2))
    assert pooled_distillation([current], [frozen]).item() == pytest.approx(wanted, rel=1e-12)


def test_what_pooling_removes_costs_nothing() -> None:
    (maps,) = _maps(3, (2, 3, 4, 4))
    pattern = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    other = maps.clone()
    maps[:, :, :2, :2] = pattern
    other[:, :, :2, :2] = pattern.flip(0)
    assert pooled_distillation([maps], [-other]).item() == pytest.approx(0, abs=1e-12)
    assert pooled_distillation([maps], [maps.roll(1, dims=1)]).item() > 0.1


def test_flat_distillation_equals_the_loop_reference() -> None:
    current, frozen = _maps(4, (5, 7), (5, 7))
    pairs = zip(current.tolist(), frozen.tolist(), strict=True)
    cosines = [sum(x * y for x, y in zip(_unit(a), _unit(b), strict=True)) for a, b in pairs]
    wanted = sum(1 - cosine for cosine in cosines) / 5
    assert flat_distillation(current, frozen).item() == pytest.approx(wanted, rel=1e-12)


def test_flat_distillation_by_hand() -> None:
    current = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]], dtype=torch.float64)
    frozen = torch.tensor([[5.0, 0.0], [1.0, 0.0], [-1.0, -1.0]], dtype=torch.float64)
    assert flat_distillation(current, frozen).item() == pytest.approx(1.0)


def test_gradient_reaches_only_the_model_in_training() -> None:
    current, frozen = _maps(1, *SHAPES), _maps(2, *SHAPES)
    flat = _maps(5, (3, 4), (3, 4))
    for tensor in [*current, *frozen, *flat]:
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(lambda *maps: pooled_distillation(maps, frozen), tuple(current))
    assert torch.autograd.gradcheck(lambda features: flat_distillation(features, flat[1]), (flat[0],))
    torch.autograd.backward([pooled_distillation(current, frozen), flat_distillation(*flat)])
    assert all(tensor.grad is None for tensor in [*frozen, flat[1]])


@pytest.mark.parametrize("factor", [0.0, 1e-8, 1.0, 1e8])
def test_equal_and_extreme_maps_have_finite_losses_and_gradients(factor: float) -> None:
    frozen = [maps.float() * factor for maps in _maps(2, *SHAPES)]
    for change in (0.0, factor):
        current = [(maps + change).requires_grad_() for maps in frozen]
        features = current[0].flatten(1)
        loss = pooled_distillation(current, frozen) + flat_distillation(features, frozen[0].flatten(1))
        torch.autograd.backward([loss])
        assert torch.isfinite(loss)
        assert all(maps.grad is not None and torch.isfinite(maps.grad).all() for maps in current)
    if factor == 1.0:
        assert pooled_distillation(frozen, frozen).item() == 0


def test_half_precision_is_measured_in_float32() -> None:
    current, frozen = ([maps.half() for maps in _maps(seed, *SHAPES)] for seed in (1, 2))
    loss = pooled_distillation(current, frozen)
    assert loss.dtype == torch.float32
    wanted = _reference([maps.double() for maps in current], [maps.double() for maps in frozen])
    assert loss.item() == pytest.approx(wanted, rel=1e-5)


def test_nothing_waits_for_the_host() -> None:
    current, frozen = ([maps.to("meta") for maps in _maps(seed, *SHAPES)] for seed in (1, 2))
    assert pooled_distillation(current, frozen).is_meta
    assert flat_distillation(current[0].flatten(1), frozen[0].flatten(1)).is_meta


def test_growth_factor_is_the_root_of_the_ratio() -> None:
    assert growth_factor(60, 10) == pytest.approx(6**0.5)
    assert growth_factor(50, 50) == 1


def test_bad_input_is_refused() -> None:
    maps, features = _maps(1, *SHAPES), _maps(1, (2, 3))[0]
    with pytest.raises(ValueError, match="same layers"):
        pooled_distillation(maps, maps[:1])
    with pytest.raises(ValueError, match="same layers"):
        pooled_distillation([], [])
    with pytest.raises(ValueError, match="both be"):
        pooled_distillation(maps, maps[::-1])
    with pytest.raises(ValueError, match="both be"):
        flat_distillation(features, features[:1])
    for seen, new in ((5, 0), (5, 6)):
        with pytest.raises(ValueError, match="must number"):
            growth_factor(seen, new)
