import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from inlay.increments.icarl_loss import binary_loss, distilled_losses
from slow_losses import cross_entropy, softmax

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

_LABELS = torch.tensor([0, 4, 3, 1, 2, 4])


def _logits(seed: int, classes: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(6, classes, generator=generator, dtype=torch.float64)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def _slow_binary(logits: Tensor, labels: Tensor, old: Tensor | None) -> float:
    known = 0 if old is None else old.shape[1]
    total = 0.0
    for image, label in enumerate(labels.tolist()):
        for index, logit in enumerate(logits[image].tolist()):
            target = float(index == label)
            if old is not None and index < known:
                target = _sigmoid(old[image, index].item())
            total -= target * math.log(_sigmoid(logit)) + (1 - target) * math.log(1 - _sigmoid(logit))
    return total / logits.numel()


def _slow_divergence(current: Tensor, old: Tensor, temperature: float) -> float:
    total = 0.0
    for ours, theirs in zip((current / temperature).tolist(), (old / temperature).tolist(), strict=True):
        total += sum(t * math.log(t / p) for p, t in zip(softmax(ours), softmax(theirs), strict=True))
    return total / len(current)


@pytest.mark.parametrize("old", [None, _logits(1, 1), _logits(1, 3)])
def test_binary_loss_equals_the_loops(old: Tensor | None) -> None:
    logits = _logits(0)
    assert binary_loss(logits, _LABELS, old).item() == pytest.approx(_slow_binary(logits, _LABELS, old))


def test_binary_loss_computed_by_hand() -> None:
    # An image of the old class 0: the old network, which is sure at 3/4, overrules the label.
    logits, old = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[math.log(3)]])
    expected = (math.log(2) - math.log(1 / 4)) / 2
    assert binary_loss(logits, torch.tensor([0]), old).item() == pytest.approx(expected)


def test_binary_loss_pulls_old_classes_to_the_old_network_alone() -> None:
    old, logits = _logits(2, 3), _logits(3).requires_grad_()
    (found,) = torch.autograd.grad(binary_loss(logits, _LABELS, old), logits)
    torch.testing.assert_close(found[:, :3], (logits.detach()[:, :3].sigmoid() - old.sigmoid()) / 30)
    (other,) = torch.autograd.grad(binary_loss(logits, _LABELS.clamp_max(2), old), logits)
    assert found[:, :3].equal(other[:, :3])
    assert not found[:, 3:].equal(other[:, 3:])


@pytest.mark.parametrize(("temperature", "weight"), [(2.0, 0.25), (1.0, 0.7), (5.0, 1.0)])
def test_distilled_losses_equal_the_loops(temperature: float, weight: float) -> None:
    logits, old = _logits(4), _logits(5, 3)
    losses = distilled_losses(logits, _LABELS, old, temperature, weight)
    assert losses["classification"].item() == pytest.approx(cross_entropy(logits, _LABELS.tolist()))
    expected = weight * temperature**2 * _slow_divergence(logits[:, :3], old, temperature)
    assert losses["distillation"].item() == pytest.approx(expected)
    assert set(losses) == {"classification", "distillation"}


def test_distilled_losses_computed_by_hand() -> None:
    # Halved, log 9 is log 3: the old network says 3/4 against 1/4, the current one is undecided.
    losses = distilled_losses(torch.zeros(1, 4), torch.tensor([3]), torch.tensor([[math.log(9), 0.0]]))
    assert losses["classification"].item() == pytest.approx(math.log(4))
    assert losses["distillation"].item() == pytest.approx(3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(1 / 2))


def test_distillation_vanishes_where_both_agree() -> None:
    logits = _logits(6).requires_grad_()
    loss = distilled_losses(logits, _LABELS, logits[:, :3].detach() + 4)["distillation"]
    assert loss.item() == pytest.approx(0, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


def _binary(logits: Tensor, labels: Tensor, old: Tensor) -> Tensor:
    return binary_loss(logits, labels, old)


def _distilled(logits: Tensor, labels: Tensor, old: Tensor) -> Tensor:
    return torch.stack(list(distilled_losses(logits, labels, old).values())).sum()


@pytest.mark.parametrize("loss", [_binary, _distilled])
class TestBothForms:
    def test_no_gradient_flows_to_the_old_network(self, loss: Loss) -> None:
        old = _logits(8, 3).requires_grad_()
        value = loss(_logits(7).requires_grad_(), _LABELS, old)
        assert torch.autograd.grad(value, old, allow_unused=True)[0] is None

    def test_finite_for_extreme_logits(self, loss: Loss) -> None:
        logits = torch.tensor([[1e30, -1e30, 0.0], [-1e30, 1e30, 1e30]], requires_grad=True)
        value = loss(logits, torch.tensor([1, 2]), torch.tensor([[-1e30, 1e30], [0.0, -1e30]]))
        (gradient,) = torch.autograd.grad(value, logits)
        assert value.isfinite()
        assert gradient.isfinite().all()

    def test_half_precision_is_raised(self, loss: Loss) -> None:
        assert loss(_logits(0).bfloat16(), _LABELS, _logits(1, 2).bfloat16()).dtype == torch.float32

    def test_a_step_is_traced_whole(self, loss: Loss) -> None:
        traced = torch.compile(loss, fullgraph=True, dynamic=False, backend="aot_eager")
        logits, old = _logits(9).requires_grad_(), _logits(10, 3)
        found, expected = traced(logits, _LABELS, old), loss(logits, _LABELS, old)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, logits), torch.autograd.grad(expected, logits))

    @pytest.mark.parametrize("old", [(6, 5), (6, 0), (5, 2), (6,)])
    def test_other_old_classes_are_refused(self, loss: Loss, old: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"\[B, O\]"):
            loss(_logits(0), _LABELS, torch.ones(old))

    def test_other_labels_are_refused(self, loss: Loss) -> None:
        with pytest.raises(ValueError, match=r"\[B, C\]"):
            loss(_logits(0), _LABELS[1:], _logits(1, 2))
