import math

import pytest
import torch
from torch import Tensor

from inlay.discovery.distillation import DistillationForm, feature_distillation

FORMS: list[DistillationForm] = ["batch", "sample", "raw", "squared"]


def _features() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    frozen = torch.rand(4, 6, generator=generator, dtype=torch.float64)
    return frozen + 0.3 * torch.randn(4, 6, generator=generator, dtype=torch.float64), frozen


def _unit(values: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]


def _distance(a: list[float], b: list[float]) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def _reference(current: Tensor, frozen: Tensor, form: DistillationForm) -> float:
    if form == "batch":
        return _distance(_unit(current.flatten().tolist()), _unit(frozen.flatten().tolist()))
    pairs = list(zip(current.tolist(), frozen.tolist(), strict=True))
    if form == "raw":
        return sum(_distance(a, b) for a, b in pairs) / len(pairs)
    power = 2 if form == "squared" else 1
    return sum(_distance(_unit(a), _unit(b)) ** power for a, b in pairs) / len(pairs)


@pytest.mark.parametrize("form", FORMS)
def test_equals_the_loop_reference(form: DistillationForm) -> None:
    current, frozen = _features()
    assert feature_distillation(current, frozen, form).item() == pytest.approx(
        _reference(current, frozen, form), rel=1e-9
    )


@pytest.mark.parametrize("form", FORMS)
def test_equal_features_give_no_loss_and_a_finite_gradient(form: DistillationForm) -> None:
    frozen = _features()[1].float()
    current = frozen.clone().requires_grad_()
    loss = feature_distillation(current, frozen, form)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() < 1e-5
    assert current.grad is not None and torch.isfinite(current.grad).all()


@pytest.mark.parametrize("form", FORMS)
def test_gradient_reaches_only_the_current_features(form: DistillationForm) -> None:
    current, frozen = _features()
    current.requires_grad_()
    frozen.requires_grad_()
    assert torch.autograd.gradcheck(lambda c: feature_distillation(c, frozen, form), (current,))
    feature_distillation(current, frozen, form).backward()  # type: ignore[no-untyped-call]
    assert frozen.grad is None


def test_moving_away_costs_more() -> None:
    current, frozen = _features()
    farther = frozen + 2 * (current - frozen)
    assert feature_distillation(farther, frozen, "raw") > feature_distillation(current, frozen, "raw")


def test_half_precision_is_measured_in_float32() -> None:
    current, frozen = _features()
    loss = feature_distillation(current.bfloat16(), frozen.bfloat16())
    assert loss.dtype == torch.float32
    rounded = _reference(current.bfloat16().double(), frozen.bfloat16().double(), "batch")
    assert loss.item() == pytest.approx(rounded, rel=1e-5)


def test_bad_input_is_refused() -> None:
    current, frozen = _features()
    with pytest.raises(ValueError, match="both be"):
        feature_distillation(current, frozen[:1])
    with pytest.raises(ValueError, match="form"):
        feature_distillation(current, frozen, "other")  # type: ignore[arg-type]
