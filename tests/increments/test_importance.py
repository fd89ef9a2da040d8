import math

import pytest
import torch
from torch import Tensor

from inlay.increments.importance import channel_importance, relative_importance, weighted_discrepancy

SHAPES = ((3, 2, 4, 5), (3, 4, 2, 1))


def _maps(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def _importance() -> list[Tensor]:
    generator = torch.Generator().manual_seed(9)
    return [torch.rand(shape[1], generator=generator, dtype=torch.float64) for shape in SHAPES]


def _unit_squares(channel: Tensor) -> list[float]:
    squares = [float(pixel) ** 2 for pixel in channel.flatten()]
    length = math.sqrt(sum(square * square for square in squares))
    return [square / length for square in squares]


def _reference(current: list[Tensor], frozen: list[Tensor], importance: list[Tensor]) -> float:
    layers = []
    for new, old, weights in zip(current, frozen, importance, strict=True):
        costs = [
            float(weights[c]) * math.dist(_unit_squares(new[b, c]), _unit_squares(old[b, c]))
            for b in range(new.shape[0])
            for c in range(new.shape[1])
        ]
        layers.append(sum(costs) / len(costs))
    return sum(layers) / len(layers)


def test_discrepancy_equals_the_loop_reference() -> None:
    current, frozen, importance = _maps(1), _maps(2), _importance()
    found = weighted_discrepancy(current, frozen, importance).item()
    assert found == pytest.approx(_reference(current, frozen, importance), rel=1e-12)


def test_discrepancy_by_hand() -> None:
    # Orthogonal channels lie √2 apart, a channel and its negative 0, as maps are squared.
    current = torch.tensor([[1.0, 0.0], [2.0, -3.0]], dtype=torch.float64).view(1, 2, 1, 2)
    frozen = torch.tensor([[0.0, 5.0], [-2.0, 3.0]], dtype=torch.float64).view(1, 2, 1, 2)
    importance = torch.tensor([0.5, 1.5], dtype=torch.float64)
    assert weighted_discrepancy([current], [frozen], [importance]).item() == pytest.approx(math.sqrt(2) / 4)


def test_gradient_reaches_only_the_model_in_training() -> None:
    current, frozen, importance = _maps(1), _maps(2), _importance()
    for tensor in [*current, *frozen, *importance]:
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(lambda *maps: weighted_discrepancy(maps, frozen, importance), tuple(current))
    torch.autograd.backward([weighted_discrepancy(current, frozen, importance)])
    assert all(tensor.grad is None for tensor in [*frozen, *importance])


@pytest.mark.parametrize("factor", [0.0, 1e-8, 1.0, 1e8])
def test_equal_and_extreme_maps_have_finite_losses_and_gradients(factor: float) -> None:
    frozen = [maps.float() * factor for maps in _maps(2)]
    importance = [values.float() for values in _importance()]
    for change in (0.0, factor):
        current = [(maps + change).requires_grad_() for maps in frozen]
        loss = weighted_discrepancy(current, frozen, importance)
        torch.autograd.backward([loss])
        assert torch.isfinite(loss)
        assert all(maps.grad is not None and torch.isfinite(maps.grad).all() for maps in current)


def test_importance_is_the_mean_over_images_of_squared_derivatives() -> None:
    maps = _maps(1)[0].requires_grad_()
    features = _maps(2)[0].flatten(1)[:, :5].detach().requires_grad_()

    def loss_of(first: Tensor, second: Tensor) -> Tensor:
        return (first.sin() * first.mean(dim=1, keepdim=True)).sum() + second.pow(3).sum()

    found = channel_importance(loss_of(maps, features), [maps, features])
    step = 1e-6
    for tensor, importance in zip((maps, features), found, strict=True):
        wanted = [0.0] * tensor.shape[1]
        for position in range(tensor.numel()):
            moved = torch.zeros(tensor.numel(), dtype=torch.float64)
            moved[position] = step
            offset = moved.view_as(tensor)
            ends = [
                loss_of(maps + sign * offset, features) if tensor is maps else loss_of(maps, features + sign * offset)
                for sign in (1, -1)
            ]
            slope = float((ends[0] - ends[1]).detach()) / (2 * step)
            channel = int(torch.nonzero(offset)[0, 1])
            wanted[channel] += slope**2 / len(tensor)
        assert importance.tolist() == pytest.approx(wanted, rel=1e-6)


def test_relative_importances_have_mean_one_and_keep_their_ratios() -> None:
    totals = torch.tensor([1.0, 2.0, 9.0], dtype=torch.float64)
    assert relative_importance(totals).tolist() == pytest.approx([0.25, 0.5, 2.25])


def test_tiny_and_absent_importances_stay_finite() -> None:
    tiny = torch.tensor([1.0, 3.0]) * 1e-37
    assert relative_importance(tiny).tolist() == pytest.approx([0.5, 1.5], rel=1e-5)
    assert relative_importance(torch.zeros(3)).tolist() == [1, 1, 1]


def test_half_precision_is_measured_in_float32() -> None:
    current, frozen, importance = [maps.half() for maps in _maps(1)], [maps.half() for maps in _maps(2)], _importance()
    loss = weighted_discrepancy(current, frozen, [values.float() for values in importance])
    assert loss.dtype == torch.float32
    wanted = _reference([maps.double() for maps in current], [maps.double() for maps in frozen], importance)
    assert loss.item() == pytest.approx(wanted, rel=1e-5)


def test_nothing_waits_for_the_host() -> None:
    current, frozen, importance = ([t.to("meta") for t in tensors] for tensors in (_maps(1), _maps(2), _importance()))
    assert weighted_discrepancy(current, frozen, importance).is_meta
    assert relative_importance(importance[0]).is_meta


def test_bad_input_is_refused() -> None:
    maps, importance = _maps(1), _importance()
    with pytest.raises(ValueError, match="same layers"):
        weighted_discrepancy(maps, maps, importance[:1])
    with pytest.raises(ValueError, match="same layers"):
        weighted_discrepancy([], [], [])
    with pytest.raises(ValueError, match="importances"):
        weighted_discrepancy(maps, maps, importance[::-1])
