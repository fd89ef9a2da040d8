import math

import pytest
import torch
from torch import Tensor

from inlay.discovery.self_training import self_training


def _logits() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    joint = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    return joint, torch.randn(6, 2, generator=generator, dtype=torch.float64)


def _reference(joint: Tensor, novel: Tensor) -> float:
    total = 0.0
    for logits, votes in zip(joint.tolist(), novel.tolist(), strict=True):
        label = len(logits) - len(votes) + votes.index(max(votes))
        total -= math.log(math.exp(logits[label]) / sum(math.exp(logit) for logit in logits))
    return total / len(joint)


def test_equals_the_loop_reference_with_and_without_the_divisor() -> None:
    joint, novel = _logits()
    assert self_training(joint, novel).item() == pytest.approx(_reference(joint, novel))
    assert self_training(joint, novel, divide_by_classes=True).item() == pytest.approx(_reference(joint, novel) / 5)


def test_pseudo_labels_start_after_the_old_classes() -> None:
    joint = torch.tensor([[0.0, 0.0, 0.0, 9.0]])
    assert self_training(joint, torch.tensor([[0.0, 1.0]])) < 0.01
    assert self_training(joint, torch.tensor([[1.0, 0.0]])) > 8


def test_the_novel_head_gets_no_gradient() -> None:
    joint, novel = _logits()
    joint.requires_grad_()
    novel.requires_grad_()
    self_training(joint, novel).backward()  # type: ignore[no-untyped-call]
    assert novel.grad is None
    assert joint.grad is not None and joint.grad.abs().sum() > 0


def test_mismatched_logits_are_refused() -> None:
    joint, novel = _logits()
    with pytest.raises(ValueError, match="joint logits"):
        self_training(joint, novel[:3])
    with pytest.raises(ValueError, match="joint logits"):
        self_training(novel, joint)
