import pytest
import torch
from torch import Tensor

from inlay.discovery.drift import drift_between, drift_map, drift_residual


def _normal(rows: int, columns: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("size", [4, 3, 6])
def test_a_known_affine_map_is_recovered(size: int) -> None:
    before, matrix, offset = _normal(60, 4, 26) + 2, _normal(size, 4, 27), _normal(1, size, 28)[0]
    found_matrix, found_offset = drift_map(before, before @ matrix.T + offset, ridge=1e-10)
    torch.testing.assert_close(found_matrix, matrix, atol=1e-6, rtol=0)
    torch.testing.assert_close(found_offset, offset, atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", [4, 3])
def test_solves_the_ridge_problem_it_states(size: int) -> None:
    before, after, ridge = _normal(30, 4, 29), _normal(30, size, 30), 0.5
    matrix, offset = drift_map(before, after, ridge)
    penalty = ridge * torch.linalg.eigvalsh(torch.cov(before.T, correction=0)).mean()
    start = torch.eye(4, dtype=torch.float64) if size == 4 else torch.zeros(size, 4, dtype=torch.float64)

    def objective(candidate: Tensor, shift: Tensor) -> Tensor:
        total: Tensor = penalty * (candidate - start).square().sum()
        for x, y in zip(before, after, strict=True):
            total = total + (candidate @ x + shift - y).square().sum() / len(before)
        return total

    matrix.requires_grad_()
    offset.requires_grad_()
    for gradient in torch.autograd.grad(objective(matrix, offset), (matrix, offset)):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-10, rtol=0)


def test_a_huge_ridge_gives_the_identity_and_the_mean_shift() -> None:
    before, after = _normal(20, 3, 31), _normal(20, 3, 32)
    matrix, offset = drift_map(before, after, ridge=1e12)
    torch.testing.assert_close(matrix, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(offset, after.mean(0) - before.mean(0))


def test_constant_features_and_few_samples_stay_finite() -> None:
    matrix, offset = drift_map(torch.ones(5, 3), torch.full((5, 3), 4.0))
    torch.testing.assert_close(matrix, torch.eye(3))
    torch.testing.assert_close(offset, torch.full((3,), 3.0))
    few = drift_map(_normal(2, 10, 33).float(), _normal(2, 10, 34).float())
    assert all(torch.isfinite(part).all() and part.dtype == torch.float32 for part in few)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="ridge"):
        drift_map(torch.ones(3, 2), torch.ones(3, 2), ridge=0.0)
    with pytest.raises(ValueError, match="N > 0"):
        drift_map(torch.ones(3, 2), torch.ones(4, 2))


def test_residual_is_the_covariance_of_what_the_map_misses() -> None:
    before, after = _normal(20, 4, 40), _normal(20, 3, 41)
    matrix, offset = _normal(3, 4, 42), _normal(1, 3, 43)[0]
    expected = torch.zeros(3, 3, dtype=torch.float64)
    for x, y in zip(before, after, strict=True):
        missed = y - (matrix @ x + offset)
        expected += torch.outer(missed, missed) / len(before)
    torch.testing.assert_close(drift_residual(before, after, matrix, offset), expected)


def test_residual_of_an_exact_map_is_zero() -> None:
    before, matrix, offset = _normal(20, 4, 44), _normal(4, 4, 45), _normal(1, 4, 46)[0]
    residual = drift_residual(before, before @ matrix.T + offset, matrix, offset)
    torch.testing.assert_close(residual, torch.zeros_like(residual), atol=1e-20, rtol=0)


def test_drift_moves_other_features_as_those_it_was_measured_on() -> None:
    before, after, others = _normal(20, 4, 47), _normal(20, 3, 48), _normal(5, 4, 49).float()
    drift = drift_between(before, after, 0.3)
    matrix, offset = drift_map(before, after, 0.3)
    moved = drift(others)
    assert moved.dtype == torch.float32
    for x, y in zip(others, moved, strict=True):
        torch.testing.assert_close(y, (matrix @ x.double() + offset).float())
    torch.testing.assert_close(drift.residual, drift_residual(before, after, matrix, offset))
