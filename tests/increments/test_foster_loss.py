import math

import pytest
import torch
from torch import Tensor

from inlay.increments.foster_loss import balanced_distillation, boosting_losses, class_weights
from slow_losses import cross_entropy, softmax

_LABELS = torch.tensor([0, 4, 3, 1, 2, 4])
_WEIGHTS = torch.tensor([1.2, 1.2, 1.2, 0.7, 0.7], dtype=torch.float64)


def _logits(seed: int, classes: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(6, classes, generator=generator, dtype=torch.float64)


def _slow_soft_entropy(current: Tensor, old: Tensor, temperature: float, weights: list[float]) -> float:
    total = 0.0
    for ours, theirs in zip((current / temperature).tolist(), (old / temperature).tolist(), strict=True):
        raised = [weight * p for weight, p in zip(weights, softmax(theirs), strict=True)]
        total -= sum(t / sum(raised) * math.log(p) for p, t in zip(softmax(ours), raised, strict=True))
    return total / len(current)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.94, 0.97, 0.9999])
def test_class_weights_equal_the_loop(beta: float) -> None:
    counts = [20, 20, 1, 500, 500, 37]
    raw = [(1 - beta) / (1 - beta**count) for count in counts]
    expected = [weight / sum(raw) * len(raw) for weight in raw]
    assert class_weights(torch.tensor(counts), beta).tolist() == pytest.approx(expected, rel=1e-6)


def test_class_weights_computed_by_hand() -> None:
    # One image at a β of a half weighs 1, two weigh 2/3: scaled to the mean 1 these are 6/5 and 4/5.
    assert class_weights(torch.tensor([1, 2]), 0.5).tolist() == pytest.approx([6 / 5, 4 / 5])


def test_class_weights_go_from_equal_to_inverse_counts() -> None:
    counts = torch.tensor([1, 4])
    assert class_weights(counts, 0.0).tolist() == [1, 1]
    assert class_weights(counts, 1 - 1e-12).tolist() == pytest.approx([8 / 5, 2 / 5])


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_boosting_losses_equal_the_loops(temperature: float) -> None:
    logits, enhancing, old = _logits(0), _logits(1), _logits(2, 3)
    losses = boosting_losses(logits, enhancing, old, _LABELS, _WEIGHTS, temperature)
    aligned = [[v / w for v, w in zip(row, _WEIGHTS.tolist(), strict=True)] for row in logits.tolist()]
    expected = {
        "classification": cross_entropy(torch.tensor(aligned, dtype=torch.float64), _LABELS.tolist()),
        "enhancement": cross_entropy(enhancing, _LABELS.tolist()),
        "distillation": _slow_soft_entropy(logits[:, :3], old, temperature, [1.0] * 3),
    }
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected)


def test_boosting_losses_computed_by_hand() -> None:
    # The weights turn log 4 into log 2 and log 3 into log 9: 9/12 for the label. Softened, the old network is
    # undecided between the old classes, the current one at 2 : 1.
    logits, old = torch.tensor([[math.log(4), 0.0, math.log(3)]]), torch.zeros(1, 2)
    weights, label = torch.tensor([2.0, 0.5, 0.5]), torch.tensor([2])
    losses = boosting_losses(logits, torch.zeros(1, 3), old, label, weights)
    assert losses["classification"].item() == pytest.approx(-math.log(9 / 12))
    assert losses["enhancement"].item() == pytest.approx(math.log(3))
    assert losses["distillation"].item() == pytest.approx(-(math.log(2 / 3) + math.log(1 / 3)) / 2)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_balanced_distillation_equals_the_loops(temperature: float) -> None:
    student, teacher = _logits(3), _logits(4)
    expected = _slow_soft_entropy(student, teacher, temperature, _WEIGHTS.tolist())
    assert balanced_distillation(student, teacher, _WEIGHTS, temperature).item() == pytest.approx(expected)


def test_balanced_distillation_computed_by_hand() -> None:
    # Weights 3 : 1 turn an undecided teacher into 3/4 against 1/4; halved, the student's log 9 is log 3.
    loss = balanced_distillation(torch.tensor([[math.log(9), 0.0]]), torch.zeros(1, 2), torch.tensor([1.5, 0.5]))
    assert loss.item() == pytest.approx(-(3 / 4 * math.log(3 / 4) + 1 / 4 * math.log(1 / 4)))


def test_balanced_distillation_is_least_at_the_raised_teacher() -> None:
    teacher, student = _logits(5), (_logits(5) + 2 * _WEIGHTS.log()).requires_grad_()
    (gradient,) = torch.autograd.grad(balanced_distillation(student, teacher, _WEIGHTS), student)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


def _boosting(logits: Tensor, old: Tensor) -> Tensor:
    return torch.stack(list(boosting_losses(logits, logits.flip(1), old, _LABELS, _WEIGHTS).values())).sum()


def _compression(logits: Tensor, teacher: Tensor) -> Tensor:
    return balanced_distillation(logits, teacher, _WEIGHTS)


def test_no_gradient_flows_to_the_teacher() -> None:
    for loss, classes in ((_boosting, 3), (_compression, 5)):
        teacher = _logits(6, classes).requires_grad_()
        value = loss(_logits(7).requires_grad_(), teacher)
        assert torch.autograd.grad(value, teacher, allow_unused=True)[0] is None


def test_finite_for_extreme_logits() -> None:
    for loss, classes in ((_boosting, 3), (_compression, 5)):
        signs = _logits(8).sign().float()
        logits = (1e30 * signs).requires_grad_()
        value = loss(logits, -1e30 * signs[:, :classes])
        (gradient,) = torch.autograd.grad(value, logits)
        assert value.isfinite()
        assert gradient.isfinite().all()


def test_half_precision_is_raised() -> None:
    assert _boosting(_logits(0).bfloat16(), _logits(1, 3).bfloat16()).dtype == torch.float32
    assert _compression(_logits(0).bfloat16(), _logits(1).bfloat16()).dtype == torch.float32


def test_a_step_is_traced_whole() -> None:
    for loss, classes in ((_boosting, 3), (_compression, 5)):
        traced = torch.compile(loss, fullgraph=True, dynamic=False, backend="aot_eager")
        logits, teacher = _logits(9).requires_grad_(), _logits(10, classes)
        found, expected = traced(logits, teacher), loss(logits, teacher)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, logits), torch.autograd.grad(expected, logits))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="one image or more"):
        class_weights(torch.tensor([3, 0]), 0.9)
    with pytest.raises(ValueError, match="beta"):
        class_weights(torch.tensor([3, 1]), 1.0)
    with pytest.raises(ValueError, match=r"weights must be \[C\]"):
        boosting_losses(_logits(0), _logits(1), _logits(2, 3), _LABELS, _WEIGHTS[:1])
    with pytest.raises(ValueError, match=r"weights must be \[C\]"):
        balanced_distillation(_logits(0), _logits(1), _WEIGHTS[:1])
    with pytest.raises(ValueError, match=r"both logits"):
        boosting_losses(_logits(0), _logits(1, 4), _logits(2, 3), _LABELS, _WEIGHTS)
    with pytest.raises(ValueError, match=r"\[B, O\]"):
        boosting_losses(_logits(0), _logits(1), _logits(2, 6), _LABELS, _WEIGHTS)
