import math

import pytest
import torch
from torch import Tensor

from inlay.increments.der_loss import auxiliary_labels, auxiliary_loss
from slow_losses import cross_entropy

_LABELS = torch.tensor([0, 4, 5, 6, 7, 2])


def _logits(seed: int) -> Tensor:
    return 3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _slow_labels(labels: Tensor, old: int) -> list[int]:
    return [0 if label < old else label - old + 1 for label in labels.tolist()]


@pytest.mark.parametrize("old", [1, 3, 5, 8])
def test_labels_equal_the_loop(old: int) -> None:
    assert auxiliary_labels(_LABELS, old).tolist() == _slow_labels(_LABELS, old)


def test_loss_equals_the_loops() -> None:
    logits = _logits(0)
    found = auxiliary_loss(logits, _LABELS, 5)
    assert found.item() == pytest.approx(cross_entropy(logits, _slow_labels(_LABELS, 5)))


def test_loss_computed_by_hand() -> None:
    # With logits log 3 against 0: an old image is at 3/4, a new one at 1/4.
    logits = torch.tensor([[math.log(3), 0.0], [math.log(3), 0.0]])
    expected = -(math.log(3 / 4) + math.log(1 / 4)) / 2
    assert auxiliary_loss(logits, torch.tensor([49, 50]), 50).item() == pytest.approx(expected)


def test_which_old_class_it_is_does_not_matter() -> None:
    logits = _logits(1)
    assert auxiliary_loss(logits, _LABELS, 5).equal(auxiliary_loss(logits, _LABELS.clamp_min(3), 5))


def test_finite_for_extreme_logits() -> None:
    logits = torch.tensor([[1e30, -1e30, 0.0], [-1e30, 1e30, 0.0]], requires_grad=True)
    loss = auxiliary_loss(logits, torch.tensor([3, 0]), 2)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_half_precision_is_raised() -> None:
    assert auxiliary_loss(_logits(2).bfloat16(), _LABELS, 5).dtype == torch.float32


def test_a_step_is_traced_whole() -> None:
    traced = torch.compile(auxiliary_loss, fullgraph=True, dynamic=False, backend="aot_eager")
    torch.testing.assert_close(traced(_logits(3), _LABELS, 5), auxiliary_loss(_logits(3), _LABELS, 5))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"labels \[B\]"):
        auxiliary_loss(_logits(0), _LABELS[1:], 5)
    with pytest.raises(ValueError, match="old and new"):
        auxiliary_loss(_logits(0), _LABELS, 0)
    with pytest.raises(ValueError, match="old and new"):
        auxiliary_loss(_logits(0)[:, :1], _LABELS, 8)
