import math

import pytest
import torch
from torch import nn

from inlay.heads import CosineHead, grow, linear, projector


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_cosine_head_against_a_loop() -> None:
    prototypes = torch.randn(4, 6, generator=_generator(1), dtype=torch.float64)
    features = 5 * torch.randn(3, 6, generator=_generator(2), dtype=torch.float64)
    found = CosineHead(prototypes)(features)
    assert found.shape == (3, 4)
    for i, feature in enumerate(features.tolist()):
        for k, prototype in enumerate(prototypes.tolist()):
            product = sum(a * b for a, b in zip(feature, prototype, strict=True))
            lengths = math.sqrt(sum(a * a for a in feature)) * math.sqrt(sum(b * b for b in prototype))
            assert found[i, k].item() == pytest.approx(product / lengths, abs=1e-12)


def test_cosine_head_takes_directions_alone_and_a_copy() -> None:
    prototypes = torch.tensor([[3.0, 4.0], [0.0, -2.0]])
    head = CosineHead(prototypes)
    assert torch.allclose(head.prototypes, torch.tensor([[0.6, 0.8], [0.0, -1.0]]))
    assert torch.equal(prototypes, torch.tensor([[3.0, 4.0], [0.0, -2.0]]))
    assert head.prototypes.requires_grad
    with torch.no_grad():
        head.prototypes.mul_(7)
    assert torch.allclose(head(torch.tensor([[1.0, 0.0]])), torch.tensor([[0.6, 0.0]]))


def test_linear_is_uniform_within_the_default_bound() -> None:
    layer = linear(64, 2000, _generator())
    bound = 1 / 8
    for parameter in (layer.weight, layer.bias):
        values = parameter.detach().flatten()
        assert -bound <= values.min() < -0.98 * bound
        assert 0.98 * bound < values.max() < bound
        assert values.mean().abs() < 0.05 * bound
        assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
        assert parameter.requires_grad


def test_linear_has_the_bound_of_pytorch() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        default = nn.Linear(64, 2000)
    own = linear(64, 2000, _generator())
    assert own.weight.abs().max().item() == pytest.approx(default.weight.abs().max().item(), rel=0.01)
    assert own.bias.abs().max().item() == pytest.approx(default.bias.abs().max().item(), rel=0.01)


def test_linear_is_a_function_of_its_generator() -> None:
    state = torch.get_rng_state()
    first, again, other = (linear(5, 3, _generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.weight, again.weight)
    assert torch.equal(first.bias, again.bias)
    assert not torch.equal(first.weight, other.weight)
    assert torch.equal(torch.get_rng_state(), state)


def test_projector_is_two_layers_with_relu_between() -> None:
    network = projector(6, 3, _generator())
    features = torch.randn(4, 6, generator=_generator(1))
    first, last = network[0], network[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    assert first.weight.shape == (6, 6)
    hidden = (features @ first.weight.T + first.bias).clamp(min=0)
    assert torch.allclose(network(features), hidden @ last.weight.T + last.bias, atol=1e-6)
    assert not torch.equal(first.weight[:3], last.weight)


def test_grown_head_keeps_the_old_outputs() -> None:
    head = linear(5, 3, _generator())
    wider = grow(head, 2, _generator(1))
    features = torch.randn(7, 5, generator=_generator(2))
    assert (wider.in_features, wider.out_features) == (5, 5)
    assert torch.equal(wider.weight[:3], head.weight)
    assert torch.equal(wider.bias[:3], head.bias)
    assert torch.allclose(wider(features)[:, :3], head(features), atol=1e-6)
    assert head.out_features == 3


def test_new_biases_are_one_below_the_smallest_old_one() -> None:
    head = linear(5, 3, _generator())
    with torch.no_grad():
        head.bias.copy_(torch.tensor([0.5, -2.0, 4.0]))
    assert torch.equal(grow(head, 2, _generator(1)).bias[3:], torch.tensor([-3.0, -3.0]))


def test_new_rows_are_random_by_the_generator_and_apart_from_the_old_head() -> None:
    head = linear(5, 3, _generator())
    first, again, other = (grow(head, 2, _generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight[3:], other.weight[3:])
    assert not torch.equal(first.weight[3], first.weight[4])
    assert first.weight[3:].abs().max() <= 1 / math.sqrt(5)
    with torch.no_grad():
        first.weight.zero_()
    assert head.weight.abs().sum() > 0


def test_grown_head_has_the_precision_of_the_old_one() -> None:
    assert grow(linear(5, 3, _generator()).double(), 2, _generator()).weight.dtype == torch.float64
