import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from inlay.discovery.refit import refit_linear


def _blobs(counts: list[int], spread: float, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(len(counts), 4, generator=generator, dtype=torch.float64)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    noise = torch.randn(len(labels), 4, generator=generator, dtype=torch.float64)
    scale = torch.tensor([0.1, 1.0, 5.0, 20.0], dtype=torch.float64)
    return (centres[labels] + spread * noise) * scale + 7, labels


def test_separable_classes_are_separated() -> None:
    features, labels = _blobs([30, 30, 30], spread=0.2, seed=35)
    weight, bias = refit_linear(features.float(), labels, 3)
    assert (features.float() @ weight.T + bias).argmax(dim=1).equal(labels)


def test_agrees_with_balanced_scikit_learn() -> None:
    features, labels = _blobs([60, 25, 10], spread=3.0, seed=36)
    decay = 1e-2
    weight, bias = refit_linear(features, labels, 3, decay, iterations=500)
    standard = (features - features.mean(0)) / features.std(0, correction=0)
    reference = LogisticRegression(C=1 / (decay * len(labels)), class_weight="balanced", tol=1e-10, max_iter=5000)
    reference.fit(standard.numpy(), labels.numpy())
    ours = (features @ weight.T + bias).softmax(dim=1)
    theirs = torch.from_numpy(reference.predict_proba(standard.numpy()))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    scale = features.std(0, correction=0)
    torch.testing.assert_close(weight * scale, torch.from_numpy(reference.coef_), atol=1e-4, rtol=0)


def test_repeats_itself() -> None:
    features, labels = _blobs([20, 20], spread=2.0, seed=37)
    once = refit_linear(features, labels, 2, 1e-2)
    again = refit_linear(features, labels, 2, 1e-2)
    assert torch.equal(once[0], again[0]) and torch.equal(once[1], again[1])


def test_a_class_without_samples_never_wins() -> None:
    features, labels = _blobs([20, 20], spread=0.3, seed=39)
    weight, bias = refit_linear(features, 2 * labels, 4)
    assert weight[[1, 3]].abs().sum() == 0
    assert torch.equal(bias[[1, 3]], (bias[[0, 2]].min() - 1).repeat(2))
    assert (features @ weight.T + bias).argmax(dim=1).equal(2 * labels)


def test_constant_features_get_no_weight() -> None:
    features, labels = _blobs([20, 20], spread=1.0, seed=40)
    features[:, 1] = 5.0
    weight, bias = refit_linear(features, labels, 2)
    assert torch.isfinite(weight).all() and torch.isfinite(bias).all()
    torch.testing.assert_close(weight[:, 1], torch.zeros(2, dtype=torch.float64))


def test_works_without_gradients_enabled() -> None:
    features, labels = _blobs([20, 20], spread=1.0, seed=41)
    with torch.no_grad():
        weight, _ = refit_linear(features, labels, 2)
    assert weight.abs().sum() > 0 and not weight.requires_grad


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.\.1"):
        refit_linear(torch.ones(3, 2), torch.tensor([0, 1, 2]), 2)
    with pytest.raises(ValueError, match=r"0\.\.1"):
        refit_linear(torch.ones(3, 2), torch.tensor([0, 1, -1]), 2)
    with pytest.raises(ValueError, match="labels"):
        refit_linear(torch.ones(3, 2), torch.tensor([0, 1]), 2)
