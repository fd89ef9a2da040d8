import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from inlay.discovery.projection import StudentHead, principal_projection
from inlay.discovery.student import sharpened_targets, student_assignments, target_divergence


def _features(images: int = 40, dimensions: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.arange(dimensions, 0, -1, dtype=torch.float64)
    rotation, _ = torch.linalg.qr(torch.randn(dimensions, dimensions, generator=generator, dtype=torch.float64))
    drawn = torch.randn(images, dimensions, generator=generator, dtype=torch.float64) * spread
    return 3 + torch.matmul(drawn, rotation)


def _head(size: int = 3) -> tuple[Tensor, StudentHead]:
    features = _features()
    matrix, mean = principal_projection(features, size)
    return features, StudentHead(matrix, mean, (features[:size] - mean) @ matrix.T)


def _slow_direction(features: Tensor, found: list[Tensor]) -> Tensor:
    """Power iteration on the scatter matrix, away from the directions found so far."""
    images, dimensions = features.shape
    mean = [sum(float(row[d]) for row in features) / images for d in range(dimensions)]
    scatter = torch.zeros(dimensions, dimensions, dtype=torch.float64)
    for row in features:
        for i in range(dimensions):
            for j in range(dimensions):
                scatter[i, j] += (row[i] - mean[i]) * (row[j] - mean[j])
    direction = torch.ones(dimensions, dtype=torch.float64)
    for _ in range(2000):
        for other in found:
            direction = direction - (direction @ other) * other
        direction = scatter @ direction
        direction = direction / direction.norm()
    return direction if direction[direction.abs().argmax()] > 0 else -direction


def test_rows_are_the_directions_of_power_iteration() -> None:
    features = _features()
    found: list[Tensor] = []
    for _ in range(3):
        found.append(_slow_direction(features, found))
    matrix, mean = principal_projection(features, 3)
    torch.testing.assert_close(matrix, torch.stack(found), rtol=0, atol=1e-9)
    torch.testing.assert_close(mean, features.mean(dim=0))


def test_embedding_equals_that_of_scikit_learn_up_to_signs() -> None:
    features = _features()
    matrix, mean = principal_projection(features, 4)
    expected = torch.from_numpy(PCA(4, svd_solver="full").fit_transform(features.numpy()))
    torch.testing.assert_close(((features - mean) @ matrix.T).abs(), expected.abs())


def test_rows_are_orthonormal_and_largest_entries_positive() -> None:
    for seed in range(5):
        matrix, _ = principal_projection(_features(seed=seed), 6)
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(6, dtype=torch.float64))
        assert (matrix.amax(dim=1) == matrix.abs().amax(dim=1)).all()


def test_signs_do_not_depend_on_the_order_or_reflection_of_images() -> None:
    features = _features()
    matrix, mean = principal_projection(features, 4)
    reversed_matrix, _ = principal_projection(features.flip(0), 4)
    reflected, opposite = principal_projection(-features, 4)
    torch.testing.assert_close(reversed_matrix, matrix)
    torch.testing.assert_close(reflected, matrix)
    torch.testing.assert_close(opposite, -mean)


def test_decomposition_is_exact_for_features_of_low_precision() -> None:
    # A mean and a decomposition in float32 would round these differently.
    features = (_features() * 2**-6 + 2.0**12).float()
    matrix, mean = principal_projection(features, 3)
    exact, exact_mean = principal_projection(features.double(), 3)
    assert matrix.dtype == mean.dtype == torch.float32
    torch.testing.assert_close(matrix, exact.float(), rtol=0, atol=0)
    torch.testing.assert_close(mean, exact_mean.float(), rtol=0, atol=0)
    assert principal_projection(features.bfloat16(), 3)[0].dtype == torch.float32


def test_as_many_directions_as_images_or_without_variance_are_still_orthonormal() -> None:
    for features in (_features(4), torch.ones(5, 6, dtype=torch.float64)):
        matrix, _ = principal_projection(features, 4)
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize(("images", "dimensions"), [(3, 6), (6, 3), (0, 6)])
def test_too_few_images_or_dimensions_are_named(images: int, dimensions: int) -> None:
    with pytest.raises(ValueError, match=f"4 directions need .* got {images} images of {dimensions} dimensions"):
        principal_projection(torch.ones(images, dimensions), 4)


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="1 direction or more"):
        principal_projection(_features(), 0)
    with pytest.raises(ValueError, match=r"\[N, D\]"):
        principal_projection(torch.ones(4), 1)
    with pytest.raises(ValueError, match="finite"):
        principal_projection(torch.full((5, 4), torch.nan), 2)
    matrix, mean, centres = torch.ones(3, 6), torch.ones(6), torch.ones(3, 3)
    for parts in [(matrix, mean[:5], centres), (matrix, mean, centres[:2]), (matrix, mean, matrix), (mean, mean, mean)]:
        with pytest.raises(ValueError, match="a head needs"):
            StudentHead(*parts)


def test_head_starts_as_the_projection() -> None:
    features, head = _head()
    matrix, mean = principal_projection(features, 3)
    embedded = torch.stack([matrix @ (row - mean) for row in features])
    torch.testing.assert_close(head.bottleneck(features), embedded)
    torch.testing.assert_close(head(features), student_assignments(embedded, embedded[:3]))


def test_head_keeps_its_own_copies_and_leaves_the_global_generator_alone() -> None:
    matrix, mean = principal_projection(_features(), 3)
    centres = torch.eye(3, dtype=torch.float64)
    before = torch.random.get_rng_state()
    head = StudentHead(matrix, mean, centres)
    assert torch.equal(torch.random.get_rng_state(), before)
    expected = {name: value.clone() for name, value in head.state_dict().items()}
    for source in (matrix, mean, centres):
        source.zero_()
    assert all(torch.equal(value, expected[name]) for name, value in head.state_dict().items())
    assert {name for name, _ in head.named_parameters()} == {"bottleneck.weight", "bottleneck.bias", "centres"}


def test_all_parameters_learn_when_traced_whole() -> None:
    features, head = _head()
    targets = sharpened_targets(head(features).detach())

    def loss(rows: Tensor) -> Tensor:
        return target_divergence(targets, head(rows))

    traced = torch.compile(loss, fullgraph=True, dynamic=False, backend="aot_eager")
    parameters = list(head.parameters())
    found = torch.autograd.grad(traced(features), parameters)
    torch.testing.assert_close(found, torch.autograd.grad(loss(features), parameters))
    assert all((gradient != 0).any() for gradient in found)
    start = loss(features).item()
    optimiser = torch.optim.SGD(parameters, lr=0.05)
    for _ in range(20):
        optimiser.zero_grad()
        loss(features).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert loss(features).item() < start
