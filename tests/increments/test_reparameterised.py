import math

import pytest
import torch
from torch import Tensor

from inlay.increments.reparameterised import (
    drawn_prototypes,
    prototype_similarity,
    selective_classification,
    selective_distillation,
)


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


def test_similarity_is_the_largest_cosine() -> None:
    features, prototypes = _normal(1, 6, 4), _normal(2, 3, 4)
    wanted = [max(_cosine(f, p) for p in prototypes.tolist()) for f in features.tolist()]
    assert prototype_similarity(features, prototypes).tolist() == pytest.approx(wanted, rel=1e-12)


def test_similarity_has_a_gradient_for_the_features_alone() -> None:
    features, prototypes = _normal(1, 6, 4).requires_grad_(), _normal(2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: prototype_similarity(x, prototypes), (features,))
    torch.autograd.backward([prototype_similarity(features, prototypes).sum()])
    assert prototypes.grad is None


@pytest.mark.parametrize("weighted", [False, True])
def test_classification_equals_the_loop_reference(weighted: bool) -> None:
    logits, similarity = _normal(3, 5, 4), _normal(4, 5).tanh()
    labels = torch.tensor([0, 3, 1, 1, 2])
    total = 0.0
    for row, label, w in zip(logits.tolist(), labels.tolist(), similarity.tolist(), strict=True):
        loss = math.log(sum(math.exp(score / 0.1) for score in row)) - row[label] / 0.1
        total += (1 - w if weighted else 1) * loss
    found = selective_classification(logits, labels, similarity if weighted else None)
    assert found.item() == pytest.approx(total / 5, rel=1e-12)


def test_distillation_is_a_weighted_sum_of_distances() -> None:
    current = torch.tensor([[3.0, 4.0], [1.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    frozen = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    similarity = torch.tensor([0.5, 0.9, -0.2], dtype=torch.float64)
    assert selective_distillation(current, frozen, similarity).item() == pytest.approx(0.5 * 5 - 0.2 * 3)


def test_distillation_trains_features_and_weights_but_not_the_old_model() -> None:
    current, frozen = _normal(5, 4, 3).requires_grad_(), _normal(6, 4, 3).requires_grad_()
    similarity = _normal(7, 4).tanh().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: selective_distillation(x, frozen, w), (current, similarity))
    torch.autograd.backward([selective_distillation(current, frozen, similarity)])
    assert frozen.grad is None


@pytest.mark.parametrize("factor", [0.0, 1e-20, 1e15])
def test_extremes_have_finite_losses_and_gradients(factor: float) -> None:
    frozen, prototypes = _normal(5, 4, 3).float() * factor, _normal(6, 2, 3).float() * factor
    for start in (frozen, -frozen):
        current = start.clone().requires_grad_()
        similarity = prototype_similarity(current, prototypes)
        labels = torch.tensor([0, 1, 2, 0])
        losses = (
            selective_distillation(current, frozen, similarity),
            selective_classification(current, labels, similarity),
        )
        torch.autograd.backward(losses)
        assert all(torch.isfinite(loss) for loss in losses)
        assert current.grad is not None and torch.isfinite(current.grad).all()


def test_half_precision_is_measured_in_float32() -> None:
    features, prototypes = _normal(1, 6, 4).half(), _normal(2, 3, 4).half()
    similarity = prototype_similarity(features, prototypes)
    assert similarity.dtype == torch.float32
    assert selective_classification(features, torch.zeros(6).long(), similarity).dtype == torch.float32
    assert selective_distillation(features, features, similarity).dtype == torch.float32


def test_drawn_prototypes_carry_their_classes() -> None:
    prototypes = _normal(8, 3, 2)
    almost_one = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0)).item()
    draws = torch.tensor([0.0, 0.3, 0.34, 0.66, 0.67, almost_one])
    features, labels = drawn_prototypes(prototypes, draws)
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(features, prototypes[[0, 0, 1, 1, 2, 2]])


def test_every_class_is_drawn_as_often_as_another() -> None:
    draws = (torch.arange(700) + 0.5) / 700
    assert drawn_prototypes(_normal(8, 7, 2), draws)[1].bincount().tolist() == [100] * 7


def test_nothing_waits_for_the_host() -> None:
    features, prototypes, draws = (_normal(1, *shape).to("meta") for shape in ((6, 4), (3, 4), (6,)))
    similarity = prototype_similarity(features, prototypes)
    replayed, labels = drawn_prototypes(prototypes, draws)
    assert selective_classification(replayed, labels, similarity).is_meta
    assert selective_distillation(features, replayed, similarity).is_meta


def test_bad_input_is_refused() -> None:
    features, labels = _normal(1, 6, 4), torch.zeros(6).long()
    with pytest.raises(ValueError, match="prototypes"):
        prototype_similarity(features, _normal(2, 3, 5))
    with pytest.raises(ValueError, match="prototypes"):
        prototype_similarity(features, features[:0])
    with pytest.raises(ValueError, match="temperature"):
        selective_classification(features, labels, temperature=0)
    with pytest.raises(ValueError, match="both be"):
        selective_distillation(features, features, features[0])
