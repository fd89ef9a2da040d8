import math

import pytest
import torch
from torch import Tensor

from inlay.discovery.student import DivergenceMean, sharpened_targets, student_assignments, target_divergence


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _q(images: int = 7, clusters: int = 4, seed: int = 0) -> Tensor:
    return _normal(images, clusters, seed=seed).softmax(dim=1)


def _slow_assignments(points: Tensor, centres: Tensor) -> Tensor:
    rows = []
    for point in points.tolist():
        kernel = []
        for centre in centres.tolist():
            kernel.append(1 / (1 + sum((z - m) ** 2 for z, m in zip(point, centre, strict=True))))
        rows.append([value / sum(kernel) for value in kernel])
    return torch.tensor(rows, dtype=torch.float64)


def _slow_targets(q: Tensor) -> Tensor:
    images, clusters = q.shape
    sums = [sum(float(q[i, k]) for i in range(images)) for k in range(clusters)]
    rows = []
    for i in range(images):
        weights = [float(q[i, k]) ** 2 / sums[k] for k in range(clusters)]
        rows.append([weight / sum(weights) for weight in weights])
    return torch.tensor(rows, dtype=torch.float64)


def _slow_divergence(p: Tensor, q: Tensor) -> float:
    return sum(float(a) * math.log(float(a) / float(b)) for a, b in zip(p.flatten(), q.flatten(), strict=True))


def test_assignments_equal_the_loops() -> None:
    points, centres = _normal(6, 3), _normal(5, 3, seed=1)
    torch.testing.assert_close(student_assignments(points, centres), _slow_assignments(points, centres))


def test_assignments_computed_by_hand() -> None:
    # Squared distances 0 and 3: kernels 1 and 1/4.
    q = student_assignments(torch.zeros(1, 3), torch.tensor([[0.0, 0.0, 0.0], [1.0, -1.0, 1.0]]))
    torch.testing.assert_close(q, torch.tensor([[0.8, 0.2]]))


def test_small_distances_survive_far_from_the_origin() -> None:
    points, centres = _normal(6, 3), _normal(4, 3, seed=1)
    moved = student_assignments(points + 2.0**20, centres + 2.0**20)
    torch.testing.assert_close(moved, student_assignments(points, centres), rtol=0, atol=1e-8)


def test_gradient_of_assignments_also_on_a_centre() -> None:
    points, centres = _normal(4, 3), _normal(3, 3, seed=1)
    points[0] = centres[0]
    inputs = (points.requires_grad_(), centres.requires_grad_())
    assert torch.autograd.gradcheck(student_assignments, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fraction", [0.0, 1e-154, 1e-30, 1e-19, 1e-18, 1.0])
def test_assignments_and_loss_are_finite_at_any_distance(dtype: torch.dtype, fraction: float) -> None:
    far = fraction * torch.finfo(dtype).max
    points = torch.tensor([[far, -far], [-far, far], [0.0, far]], dtype=dtype, requires_grad=True)
    centres = torch.tensor([[-far, far], [far, far], [0.0, 0.0]], dtype=dtype, requires_grad=True)
    q = student_assignments(points, centres)
    torch.testing.assert_close(q.sum(dim=1), torch.ones(3, dtype=dtype))
    loss = target_divergence(torch.eye(3, dtype=dtype), q)
    gradients = torch.autograd.grad(loss, (points, centres))
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_targets_equal_the_loops() -> None:
    torch.testing.assert_close(sharpened_targets(_q()), _slow_targets(_q()))


def test_targets_computed_by_hand() -> None:
    # Column sums 1.2 and 0.8: the first row weighs 0.64 / 1.2 against 0.04 / 0.8, the second 0.16 / 1.2
    # against 0.36 / 0.8.
    p = sharpened_targets(torch.tensor([[0.8, 0.2], [0.4, 0.6]], dtype=torch.float64))
    torch.testing.assert_close(p, torch.tensor([[32 / 35, 3 / 35], [8 / 35, 27 / 35]], dtype=torch.float64))


def test_targets_sharpen_balanced_assignments() -> None:
    q = _q(4, 4)[0]
    balanced = torch.stack([q.roll(shift) for shift in range(4)])
    p = sharpened_targets(balanced)
    torch.testing.assert_close(p, balanced.square() / balanced.square().sum(dim=1, keepdim=True))
    assert (p.amax(dim=1) > balanced.amax(dim=1)).all()


def test_an_empty_cluster_gets_targets_of_zero() -> None:
    q = torch.cat([_q(5, 3), torch.zeros(5, 1, dtype=torch.float64)], dim=1)
    p = sharpened_targets(q)
    torch.testing.assert_close(p[:, :3], _slow_targets(q[:, :3]))
    assert (p[:, 3] == 0).all()


def test_an_almost_empty_cluster_keeps_its_small_target() -> None:
    # Both columns divide by their sums, so the weights of the only row are 1 and 1e-30: the square underflows.
    p = sharpened_targets(torch.tensor([[1.0, 1e-30]]))
    torch.testing.assert_close(p, torch.tensor([[1.0, 1e-30]]), rtol=1e-6, atol=0)


def test_targets_carry_no_gradient() -> None:
    q = _q().requires_grad_()
    assert not sharpened_targets(q).requires_grad
    targets = _q(seed=1).requires_grad_()
    loss = target_divergence(targets, q)
    (gradient,) = torch.autograd.grad(loss, q)
    torch.testing.assert_close(gradient, (-targets / q / q.numel()).detach())
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad(target_divergence(targets, q), targets)


@pytest.mark.parametrize(("mean", "divisor"), [("elements", 28), ("samples", 7)])
def test_divergence_equals_the_loops(mean: DivergenceMean, divisor: int) -> None:
    p, q = _q(), _q(seed=1)
    assert target_divergence(p, q, mean).item() == pytest.approx(_slow_divergence(p, q) / divisor, abs=1e-12)


def test_divergence_averages_over_elements_unless_told() -> None:
    # KL of a certain target from a fair coin is log 2, over two entries.
    loss = target_divergence(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
    assert loss.item() == pytest.approx(math.log(2) / 2)


def test_divergence_of_equal_distributions_is_zero() -> None:
    assert target_divergence(_q(), _q()).item() == pytest.approx(0, abs=1e-15)


def test_divergence_is_finite_where_an_assignment_is_zero() -> None:
    q = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    loss = target_divergence(torch.tensor([[0.0, 1.0], [0.5, 0.5]]), q)
    (gradient,) = torch.autograd.grad(loss, q)
    assert loss.isfinite() and loss > 1
    assert gradient.isfinite().all()


def test_half_precision_is_raised() -> None:
    points = _normal(6, 3).bfloat16()
    q = student_assignments(points, points[:2])
    p = sharpened_targets(q.bfloat16())
    assert q.dtype == p.dtype == target_divergence(p.bfloat16(), q.bfloat16()).dtype == torch.float32


def test_a_step_is_traced_whole() -> None:
    def loss(points: Tensor, centres: Tensor) -> Tensor:
        q = student_assignments(points, centres)
        return target_divergence(sharpened_targets(q), q)

    traced = torch.compile(loss, fullgraph=True, dynamic=False, backend="aot_eager")
    inputs = (_normal(6, 3).requires_grad_(), _normal(4, 3, seed=1).requires_grad_())
    found, expected = traced(*inputs), loss(*inputs)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs))


def test_bad_input_is_refused() -> None:
    for points, centres in [((4, 3), (2, 2)), ((3,), (2, 3)), ((4, 3), (0, 3)), ((4, 0), (2, 0))]:
        with pytest.raises(ValueError, match=r"points must be \[B, K\]"):
            student_assignments(torch.ones(points), torch.ones(centres))
    with pytest.raises(ValueError, match=r"\[N, C\]"):
        sharpened_targets(torch.ones(3))
    for p, q in [((4, 3), (4, 2)), ((4,), (4,)), ((0, 3), (0, 3))]:
        with pytest.raises(ValueError, match=r"both be \[B, C\]"):
            target_divergence(torch.ones(p), torch.ones(q))
    with pytest.raises(ValueError, match="mean must be"):
        target_divergence(_q(), _q(), mean="batch")  # type: ignore[arg-type]
