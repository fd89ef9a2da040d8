import math

import pytest
import torch
from torch import Tensor

from inlay.discovery.softened import softened_distillation


def _logits(seed: int, images: int = 6, classes: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(images, classes, generator=generator, dtype=torch.float64)


def _slow_softmax(row: list[float], temperature: float) -> list[float]:
    exponentials = [math.exp(value / temperature) for value in row]
    return [value / sum(exponentials) for value in exponentials]


def _slow_loss(current: Tensor, old: Tensor, temperature: float) -> float:
    total = 0.0
    for current_row, old_row in zip(current.tolist(), old.tolist(), strict=True):
        prediction, target = _slow_softmax(current_row, temperature), _slow_softmax(old_row, temperature)
        total -= sum(t * math.log(p) for t, p in zip(target, prediction, strict=True))
    return total / len(current)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 7.0])
def test_equals_the_loops(temperature: float) -> None:
    current, old = _logits(0), _logits(1)
    expected = _slow_loss(current, old, temperature)
    assert softened_distillation(current, old, temperature).item() == pytest.approx(expected)
    scaled = softened_distillation(current, old, temperature, scaled=True)
    assert scaled.item() == pytest.approx(temperature**2 * expected)


def test_defaults_computed_by_hand() -> None:
    # Halved, log 9 is log 3: the old model says 3/4 against 1/4, the current one is undecided.
    loss = softened_distillation(torch.zeros(1, 2), torch.tensor([[math.log(9), 0.0]]))
    assert loss.item() == pytest.approx(math.log(2))
    loss = softened_distillation(torch.tensor([[math.log(9), 0.0]]), torch.zeros(1, 2))
    assert loss.item() == pytest.approx(-(math.log(3 / 4) + math.log(1 / 4)) / 2)


def test_least_where_both_agree_up_to_a_constant() -> None:
    old = _logits(2)
    current = (old + 5).requires_grad_()
    loss = softened_distillation(current, old)
    (gradient,) = torch.autograd.grad(loss, current)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))
    assert softened_distillation(_logits(3), old) > loss


def test_gradient_flows_to_the_current_model_alone() -> None:
    current, old = _logits(4).requires_grad_(), _logits(5).requires_grad_()
    loss = softened_distillation(current, old, temperature=2.0)
    found = torch.autograd.grad(loss, (current, old), allow_unused=True)
    expected = ((current / 2).softmax(dim=1) - (old / 2).softmax(dim=1)) / 2 / len(current)
    torch.testing.assert_close(found[0], expected.detach())
    assert found[1] is None


def test_finite_for_extreme_logits() -> None:
    current = torch.tensor([[1e30, -1e30, 0.0], [-1e30, 1e30, 0.0]], requires_grad=True)
    old = torch.tensor([[-1e30, 1e30, 0.0], [-1e30, 1e30, 0.0]])
    loss = softened_distillation(current, old)
    (gradient,) = torch.autograd.grad(loss, current)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_half_precision_is_raised() -> None:
    assert softened_distillation(_logits(6).bfloat16(), _logits(7).bfloat16()).dtype == torch.float32


def test_a_step_is_traced_whole() -> None:
    traced = torch.compile(softened_distillation, fullgraph=True, dynamic=False, backend="aot_eager")
    current, old = _logits(8).requires_grad_(), _logits(9)
    found, expected = traced(current, old), softened_distillation(current, old)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, current), torch.autograd.grad(expected, current))


@pytest.mark.parametrize(("current", "old"), [((4, 3), (4, 2)), ((4, 3), (3, 3)), ((4,), (4,)), ((0, 3), (0, 3))])
def test_other_shapes_are_refused(current: tuple[int, ...], old: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"one shape \[B, O\]"):
        softened_distillation(torch.ones(current), torch.ones(old))


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature"):
        softened_distillation(_logits(0), _logits(1), temperature=0.0)
