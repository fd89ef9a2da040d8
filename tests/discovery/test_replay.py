import math

import pytest
import torch
from torch import nn

from inlay.discovery.replay import replay_loss


def test_equals_the_loop_reference_over_all_logits() -> None:
    generator = torch.Generator().manual_seed(16)
    head = nn.Linear(3, 5, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(torch.randn(5, 3, generator=generator))
        head.bias.copy_(torch.randn(5, generator=generator))
    samples = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    total = 0.0
    for sample, label in zip(samples.tolist(), labels.tolist(), strict=True):
        logits = [
            sum(w * x for w, x in zip(row, sample, strict=True)) + bias
            for row, bias in zip(head.weight.tolist(), head.bias.tolist(), strict=True)
        ]
        total -= math.log(math.exp(logits[label]) / sum(math.exp(logit) for logit in logits))
    assert replay_loss(head, samples, labels).item() == pytest.approx(total / len(samples))


def test_new_classes_are_pushed_down_on_old_samples() -> None:
    head = nn.Linear(2, 3)
    replay_loss(head, torch.ones(4, 2), torch.zeros(4, dtype=torch.long)).backward()  # type: ignore[no-untyped-call]
    assert head.bias.grad is not None
    assert head.bias.grad[2] > 0 > head.bias.grad[0]
