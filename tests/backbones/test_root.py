"""The root of features."""

import math

import torch

from inlay.backbones.root import Root


def test_each_feature_is_rooted_by_itself() -> None:
    features = torch.tensor([[0.0, 0.25, 4.0], [-1e-7, 6.0, 1.0]], dtype=torch.float64)
    found = Root()(features)
    for row, values in enumerate(features.tolist()):
        for column, value in enumerate(values):
            assert found[row, column].item() == math.sqrt(max(value, 0.0) + 1e-3)


def test_a_silent_feature_has_a_finite_slope() -> None:
    features = torch.zeros(1, 2, requires_grad=True)
    Root()(features).sum().backward()
    assert features.grad is not None
    assert torch.allclose(features.grad, torch.full((1, 2), 0.5 / math.sqrt(1e-3)))
