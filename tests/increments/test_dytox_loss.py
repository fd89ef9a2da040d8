import math

import pytest
import torch
from torch import Tensor

from inlay.increments.dytox_loss import dytox_weights, entrywise_divergence, newest_targets
from slow_losses import softmax


def _scores(seed: int, classes: int) -> Tensor:
    return 2 * torch.randn(4, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_divergence_equals_the_loops() -> None:
    scores, old = _scores(0, 5), _scores(1, 3)
    total = 0.0
    for now, before in zip(scores.tolist(), old.tolist(), strict=True):
        for p, q in zip(softmax(before), softmax(now[:3]), strict=True):
            total += p * math.log(p / q)
    assert entrywise_divergence(scores, old).item() == pytest.approx(total / 12)


def test_divergence_vanishes_where_both_agree() -> None:
    scores = _scores(2, 5).requires_grad_()
    loss = entrywise_divergence(scores, scores[:, :3].detach() + 4)
    assert loss.item() == pytest.approx(0, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, scores)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


def test_divergence_is_finite_for_extreme_scores_and_raises_half_precision() -> None:
    scores = torch.tensor([[1e30, -1e30, 0.0]], requires_grad=True)
    loss = entrywise_divergence(scores, torch.tensor([[-1e30, 1e30]]))
    assert loss.isfinite() and torch.autograd.grad(loss, scores)[0].isfinite().all()
    assert entrywise_divergence(_scores(0, 3).bfloat16(), _scores(1, 2).bfloat16()).dtype == torch.float32


def test_no_gradient_flows_to_the_scores_before() -> None:
    old = _scores(1, 3).requires_grad_()
    loss = entrywise_divergence(_scores(0, 5).requires_grad_(), old)
    assert torch.autograd.grad(loss, old, allow_unused=True)[0] is None


@pytest.mark.parametrize("old", [(4, 6), (4, 0), (3, 2), (4,)])
def test_other_old_classes_are_refused(old: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\[B, O\]|among all 5"):
        entrywise_divergence(_scores(0, 5), torch.ones(old))


def test_old_classes_are_one_target_for_the_newest_head() -> None:
    targets = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.0, 1.0, 0.0, 0.0]])
    expected = torch.tensor([[0.3, 0.3, 0.4], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(newest_targets(targets, 2), expected)


def test_weights_follow_the_share_of_old_classes() -> None:
    assert dytox_weights(50, 60) == pytest.approx({"binary": 1 / 6, "distillation": 5 / 6, "newest": 0.1})
    assert dytox_weights(0, 50) == {"binary": 1.0}
