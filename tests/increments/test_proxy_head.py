import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.increments.proxy_head import (
    NcaForm,
    ProxyHead,
    ScaledCosineHead,
    nca_loss,
    proxies_from_features,
    proxy_similarity,
    random_proxies,
)

FORMS: list[NcaForm] = ["released", "published"]


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _unit(values: list[float]) -> list[float]:
    length = math.hypot(*values)
    return [value / length for value in values]


@pytest.mark.parametrize("sharpness", [1.0, 5.0])
def test_similarity_equals_the_loop_reference(sharpness: float) -> None:
    features, proxies = _normal(1, 5, 4), _normal(2, 3, 2, 4)
    found = proxy_similarity(features, proxies, sharpness).tolist()
    for row, feature in zip(found, features.tolist(), strict=True):
        for score, group in zip(row, proxies.tolist(), strict=True):
            nearness = [-(math.dist(_unit(feature), _unit(proxy)) ** 2) for proxy in group]
            weights = [math.exp(sharpness * value) for value in nearness]
            wanted = sum(w * s for w, s in zip(weights, nearness, strict=True)) / sum(weights)
            assert score == pytest.approx(wanted, rel=1e-10)


def test_one_proxy_is_a_shifted_cosine() -> None:
    features, proxies = _normal(1, 5, 4), _normal(2, 3, 1, 4)
    wanted = 2 * ScaledCosineHead(proxies[:, 0])(features) - 2
    torch.testing.assert_close(ProxyHead(proxies)(features), wanted)


def _nca_reference(scores: list[float], label: int, form: NcaForm, margin: float) -> float:
    others = [score for index, score in enumerate(scores) if index != label]
    if form == "released":
        # The margin is taken off every score, and the shifted right score is replaced by exp(0).
        shifted = [score - margin for score in scores]
        peak = max(shifted)
        rest = sum(math.exp(score - peak) for index, score in enumerate(shifted) if index != label)
        return -(shifted[label] - peak - math.log(rest + math.exp(0)))
    return max(0.0, -math.log(math.exp(scores[label] - margin) / sum(math.exp(score) for score in others)))


@pytest.mark.parametrize("form", FORMS)
def test_nca_equals_the_loop_reference(form: NcaForm) -> None:
    scores, labels = 3 * _normal(3, 6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    scores[2, 2] = 9
    losses = [_nca_reference(row, y, form, 0.6) for row, y in zip(scores.tolist(), labels.tolist(), strict=True)]
    assert nca_loss(scores, labels, form, 0.6).item() == pytest.approx(sum(losses) / 6, rel=1e-10)
    assert form == "released" or 0.0 in losses


def test_nca_by_hand() -> None:
    scores, labels = torch.tensor([[math.log(4), math.log(2), 0.0]], dtype=torch.float64), torch.tensor([1])
    assert nca_loss(scores, labels, "published").item() == pytest.approx(math.log(5 / 2))
    assert nca_loss(scores, labels, "published", 0.6).item() == pytest.approx(math.log(5 / 2) + 0.6)
    # The largest score, 4, stands in the place of the right one.
    assert nca_loss(scores, labels, "released").item() == pytest.approx(math.log(9 / 2))


@pytest.mark.parametrize("form", FORMS)
def test_nca_has_the_right_gradient(form: NcaForm) -> None:
    scores, labels = _normal(3, 6, 4).requires_grad_(), torch.tensor([0, 1, 2, 3, 0, 1])
    margin = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, m: nca_loss(s, labels, form, m), (scores, margin))


@pytest.mark.parametrize("form", FORMS)
def test_nca_is_finite_at_extremes_and_measured_in_float32(form: NcaForm) -> None:
    labels = torch.tensor([0, 1, 0])
    for values in ([[6e4, -6e4], [6e4, -6e4], [0.0, 0.0]], [[0.0, 0.0]] * 3):
        scores = torch.tensor(values, dtype=torch.float16, requires_grad=True)
        loss = nca_loss(scores, labels, form)
        torch.autograd.backward([loss])
        assert loss.dtype == torch.float32 and torch.isfinite(loss)
        assert scores.grad is not None and torch.isfinite(scores.grad).all()


def test_zero_features_have_finite_scores_and_gradients() -> None:
    head = ProxyHead(torch.cat([_normal(4, 2, 3, 4), torch.zeros(1, 3, 4)]))
    features = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    torch.autograd.backward([nca_loss(head(features), torch.tensor([0, 2]))])
    for tensor in (features, head.novel, head.scale):
        assert tensor.grad is not None and torch.isfinite(tensor.grad).all()


@pytest.mark.parametrize("kind", [ProxyHead, ScaledCosineHead])
def test_a_grown_head_keeps_its_scores_and_freezes_them(kind: type[ProxyHead] | type[ScaledCosineHead]) -> None:
    shape = (2, 4) if kind is ProxyHead else (4,)
    first = kind(_normal(5, 3, *shape), scale=1.5)
    assert len(first.old) == 0 and first.out_features == 3 and first.in_features == 4
    second = first.grown(_normal(6, 2, *shape))
    third = second.grown(_normal(7, 1, *shape))
    features = _normal(8, 5, 4)
    assert isinstance(third, kind) and third.out_features == 6
    torch.testing.assert_close(third(features)[:, :5], second(features))
    torch.testing.assert_close(second(features)[:, :3], first(features))
    assert (third.old.requires_grad, third.novel.requires_grad, third.scale.item()) == (False, True, 1.5)
    with torch.no_grad():
        third.old.zero_()
        third.scale.zero_()
    assert first(features).any() and second.novel.any()


def test_mean_length_is_that_of_all_vectors() -> None:
    novel = torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])
    old = torch.tensor([[[0.0, 0.0], [6.0, 8.0]]])
    assert ProxyHead(novel, old).mean_length().item() == 4


def test_random_proxies_have_unit_expected_length_and_follow_the_generator() -> None:
    drawn = [random_proxies(20, 10, 64, torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*drawn)
    assert drawn[0].shape == (20, 10, 64)
    assert drawn[0].square().sum(dim=2).mean().item() == pytest.approx(1, rel=0.05)


def test_proxies_are_the_clusters_of_the_directions_of_each_class() -> None:
    centres = torch.eye(6, dtype=torch.float64).view(2, 3, 6)
    spread = 1e-3 * _normal(9, 40, 2, 3, 6)
    lengths = 1 + _normal(10, 40, 2, 3, 1).abs()
    features = ((centres + spread) * lengths).flatten(0, 2)
    labels = torch.arange(2)[None, :, None].expand(40, 2, 3).flatten()
    proxies = proxies_from_features(features, labels, 2, 3, 2.5, torch.Generator().manual_seed(2))
    assert proxies.shape == (2, 3, 6) and proxies.dtype == torch.float64
    units = F.normalize(features)
    for index in range(2):
        found = proxies[index][proxies[index].argmax(dim=1).argsort()]
        members = units[labels == index].view(40, 3, 6)
        torch.testing.assert_close(found, 2.5 * members.mean(dim=0))


def test_a_class_with_few_images_repeats_them() -> None:
    features = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    labels = torch.tensor([0, 0, 1])
    proxies = proxies_from_features(features, labels, 2, 3, 1.0, torch.Generator().manual_seed(3))
    assert sorted(set(map(tuple, proxies[0].tolist()))) == [(0, 1), (1, 0)]
    torch.testing.assert_close(proxies[1], torch.full((3, 2), 0.5**0.5))
    query = torch.tensor([[1.0, 2.0]])
    torch.testing.assert_close(proxy_similarity(query, proxies[1:]), proxy_similarity(query, proxies[1:, :1]))


@pytest.mark.parametrize("form", FORMS)
def test_nothing_waits_for_the_host(form: NcaForm) -> None:
    head = ProxyHead(_normal(5, 3, 2, 4)).grown(_normal(6, 2, 2, 4)).to("meta")
    scores = head(_normal(8, 5, 4).to("meta"))
    assert nca_loss(scores, torch.zeros(5, dtype=torch.int64, device="meta"), form, 0.6 * head.scale).is_meta


def test_bad_input_is_refused() -> None:
    scores, labels = _normal(3, 6, 4), torch.zeros(6).long()
    with pytest.raises(ValueError, match="two classes"):
        nca_loss(scores[:, :1], labels)
    with pytest.raises(ValueError, match="form"):
        nca_loss(scores, labels, "other")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dimensions"):
        ProxyHead(scores)
    with pytest.raises(ValueError, match="dimensions"):
        ScaledCosineHead(scores, _normal(3, 6, 5))
    with pytest.raises(ValueError, match="class 1 has no image"):
        proxies_from_features(scores, labels, 2, 2, 1.0, torch.Generator())
