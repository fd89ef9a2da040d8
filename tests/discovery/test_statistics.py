from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inlay.discovery.statistics import ClassStatistics, StatisticsKind, class_statistics
from inlay.errors import InlayError

KINDS: list[StatisticsKind] = ["full", "diagonal", "shared", "pooled"]


def _data(seed: int = 0, sizes: tuple[int, ...] = (40, 25, 60), dimension: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    mixing = torch.randn(len(sizes), dimension, dimension, generator=generator, dtype=torch.float64)
    centres = 5 * torch.randn(len(sizes), dimension, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), dimension, generator=generator, dtype=torch.float64)
    features = centres[labels] + torch.einsum("nij,nj->ni", mixing[labels], noise)
    order = torch.randperm(len(labels), generator=generator)
    return features[order], labels[order]


def _moments(features: Tensor, labels: Tensor, index: int) -> tuple[list[float], list[list[float]]]:
    rows = [row for row, label in zip(features.tolist(), labels.tolist(), strict=True) if label == index]
    size = len(rows[0])
    mean = [sum(row[d] for row in rows) / len(rows) for d in range(size)]
    covariance = [
        [sum((row[i] - mean[i]) * (row[j] - mean[j]) for row in rows) / (len(rows) - 1) for j in range(size)]
        for i in range(size)
    ]
    for d in range(size):
        covariance[d][d] += 1e-5
    return mean, covariance


def test_moments_equal_the_loop_reference() -> None:
    features, labels = _data()
    full, diagonal, shared, _ = (class_statistics(features, labels, 3, kind) for kind in KINDS)
    deviations = []
    for index in range(3):
        mean, covariance = _moments(features, labels, index)
        expected = torch.tensor(covariance, dtype=torch.float64)
        for statistics in (full, diagonal, shared):
            torch.testing.assert_close(statistics.mean[index], torch.tensor(mean))
        std = expected.diagonal().sqrt()
        allowed = 2**-11 * std[:, None] * std + 1e-6
        assert ((full.covariance(index) - expected).abs() <= allowed).all()
        torch.testing.assert_close(diagonal.covariance(index), torch.diag(std**2), rtol=1e-5, atol=1e-6)
        deviations.append(std)
    torch.testing.assert_close(shared.std, torch.stack(deviations).mean(dim=0).float())
    assert full.counts.tolist() == [40, 25, 60]


@pytest.mark.parametrize("kind", KINDS)
def test_kind_shapes_and_types(kind: StatisticsKind) -> None:
    statistics = class_statistics(*_data(), 3, kind)
    assert statistics.kind == kind and len(statistics) == 3
    assert statistics.mean.dtype == statistics.std.dtype == torch.float32
    assert statistics.std.shape == ((4,) if kind == "shared" else (3, 4))
    if statistics.correlation is not None:
        assert statistics.correlation.dtype == torch.float16
        assert torch.equal(statistics.correlation, statistics.correlation.mT)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_have_the_stored_moments(kind: StatisticsKind) -> None:
    statistics = class_statistics(*_data(), 3, kind)
    samples, labels = statistics.sample(40_000, torch.Generator().manual_seed(1), scale=1.5)
    assert samples.dtype == torch.float32 and samples.shape == (120_000, 4)
    assert labels.tolist() == [index for index in range(3) for _ in range(40_000)]
    for index in range(3):
        drawn = samples[labels == index].double()
        expected = 1.5**2 * statistics.covariance(index)
        spread = expected.diagonal().sqrt()
        assert ((drawn.mean(0) - statistics.mean[index]).abs() < 0.025 * spread).all()
        assert ((torch.cov(drawn.T) - expected).abs() < 0.04 * spread[:, None] * spread).all()


def test_a_dimension_that_never_varies_keeps_the_variance_floor() -> None:
    features, labels = _data()
    features[:, 2] = 3.0
    statistics = class_statistics(features, labels, 3)
    for index in range(3):
        expected = torch.tensor([0.0, 0.0, 1e-5, 0.0], dtype=torch.float64)
        torch.testing.assert_close(statistics.covariance(index)[2], expected, atol=1e-10, rtol=1e-5)


def test_sampling_repeats_itself() -> None:
    features, labels = _data()
    first, second = (
        class_statistics(features, labels, 3).sample(5, torch.Generator().manual_seed(2))[0] for _ in range(2)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_equal_the_loop_reference(kind: StatisticsKind, dtype: torch.dtype) -> None:
    features, labels = _data()
    statistics = class_statistics(features, torch.tensor([0, 2, 3])[labels], 4, kind, allow_empty=True)
    assert statistics.present == 3
    noise = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(8), dtype=dtype)
    found, classes = statistics.features_at(noise, 1.5)
    assert found.shape == (15, 4) and found.dtype == dtype
    assert classes.tolist() == [0] * 5 + [2] * 5 + [3] * 5
    for row, index in enumerate((0, 2, 3)):
        root = torch.eye(4, dtype=torch.float64)
        if statistics.correlation is not None:
            own = statistics.correlation if kind == "pooled" else statistics.correlation[index]
            values, vectors = torch.linalg.eigh(own.double())
            root = vectors @ torch.diag(values.clamp_min(0).sqrt()) @ vectors.T
        std = statistics.std.expand(4, 4)[index].double()
        for n in range(5):
            for d in range(4):
                mixed = sum(noise[row, n, e].item() * root[e, d].item() for e in range(4))
                expected = statistics.mean[index, d].item() + 1.5 * std[d].item() * mixed
                # The roots themselves are kept in float32.
                assert found[5 * row + n, d].item() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_features_of_wider_noise_are_exact() -> None:
    statistics = class_statistics(*_data(), 3, "diagonal")
    noise = torch.full((3, 1, 4), 1 / 3, dtype=torch.float64)
    found, _ = statistics.features_at(noise, 1.1)
    for index in range(3):
        for d in range(4):
            expected = statistics.mean[index, d].item() + 1.1 * statistics.std[index, d].item() / 3
            assert found[index, d].item() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_one_graph_after_the_first_call(kind: StatisticsKind) -> None:
    statistics = class_statistics(*_data(), 3, kind)
    noise = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(8))
    expected, classes = statistics.features_at(noise, 1.5)
    compiled = torch.compile(lambda n: statistics.features_at(n, 1.5), fullgraph=True, backend="aot_eager")
    found, found_classes = compiled(noise)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found_classes, classes)


def test_noise_of_another_shape_is_refused() -> None:
    statistics = class_statistics(*_data(), 3)
    for shape in ((3, 5), (2, 5, 4), (3, 5, 3)):
        with pytest.raises(ValueError, match=r"noise must be \[3, n, 4\]"):
            statistics.features_at(torch.zeros(shape))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_what_the_cpu_draws() -> None:
    features, labels = _data()
    here = class_statistics(features, labels, 3).sample(5, torch.Generator().manual_seed(2))[0]
    there = class_statistics(features.cuda(), labels.cuda(), 3).sample(5, torch.Generator().manual_seed(2))[0]
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), here, atol=1e-2, rtol=1e-2)


def test_fewer_samples_than_dimensions_can_be_replayed() -> None:
    features, labels = _data(sizes=(3, 4), dimension=10)
    statistics = class_statistics(features, labels, 2)
    samples, _ = statistics.sample(20_000, torch.Generator().manual_seed(3))
    assert torch.isfinite(samples).all()
    spread = statistics.std[0].double()
    error = torch.cov(samples[:20_000].double().T) - statistics.covariance(0)
    assert (error.abs() < 0.05 * spread[:, None] * spread).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_member_borrows_the_spread_of_the_others(kind: StatisticsKind) -> None:
    features, labels = _data()
    alone = torch.cat([features, torch.ones(1, 4)]), torch.cat([labels, torch.tensor([3])])
    others, statistics = class_statistics(features, labels, 3, kind), class_statistics(*alone, 4, kind)
    torch.testing.assert_close(statistics.mean[3], torch.ones(4))
    if kind == "shared":
        torch.testing.assert_close(statistics.std, others.std)
    else:
        torch.testing.assert_close(statistics.std[3], others.std.mean(dim=0))
    if kind == "pooled":
        assert torch.equal(statistics.tensors()["correlation"], others.tensors()["correlation"])
    elif statistics.correlation is not None and others.correlation is not None:
        expected = others.correlation.double().mean(dim=0)
        torch.testing.assert_close(statistics.correlation[3].double(), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_class_is_named_or_left_out(kind: StatisticsKind) -> None:
    features, labels = _data()
    gap = torch.where(labels >= 1, labels + 1, labels)
    with pytest.raises(ValueError, match="without members: 1"):
        class_statistics(features, gap, 4, kind)
    statistics = class_statistics(features, gap, 4, kind, allow_empty=True)
    assert statistics.counts.tolist() == [40, 0, 25, 60]
    for candidate in (statistics, statistics.mapped(2 * torch.eye(4), torch.ones(4))):
        samples, drawn = candidate.sample(2, torch.Generator().manual_seed(4))
        assert torch.isfinite(samples).all()
        assert candidate.mean[1].abs().sum() == 0
        assert drawn.tolist() == [0, 0, 2, 2, 3, 3]
    dense = class_statistics(features, labels, 3, kind)
    expected, _ = dense.sample(2, torch.Generator().manual_seed(4))
    torch.testing.assert_close(statistics.sample(2, torch.Generator().manual_seed(4))[0], expected)


@pytest.mark.parametrize("size", [4, 2, 6])
def test_mapping_equals_mapping_the_features(size: int) -> None:
    features, labels = _data()
    generator = torch.Generator().manual_seed(5)
    matrix = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    offset = torch.randn(size, generator=generator, dtype=torch.float64)
    mapped = class_statistics(features, labels, 3).mapped(matrix, offset)
    for index in range(3):
        members = features[labels == index] @ matrix.T + offset
        expected = torch.cov(members.T)
        torch.testing.assert_close(mapped.mean[index], members.mean(dim=0).float())
        scale = expected.diagonal().max()
        assert ((mapped.covariance(index) - expected).abs() < 0.01 * scale).all()
    assert mapped.counts.tolist() == [40, 25, 60] and mapped.kind == "full"


@pytest.mark.parametrize("kind", ["diagonal", "shared"])
def test_mapping_variances_keeps_the_diagonal(kind: StatisticsKind) -> None:
    statistics = class_statistics(*_data(), 3, kind)
    matrix = torch.randn(5, 4, generator=torch.Generator().manual_seed(6))
    mapped = statistics.mapped(matrix, torch.zeros(5))
    assert mapped.kind == kind
    for index in range(3):
        exact = matrix.double() @ statistics.covariance(index) @ matrix.double().T
        torch.testing.assert_close(mapped.covariance(index), torch.diag(exact.diagonal()), rtol=1e-5, atol=1e-6)


def test_pooled_correlations_equal_the_loop_reference() -> None:
    features, labels = _data()
    pooled, full = (class_statistics(features, labels, 3, kind) for kind in ("pooled", "full"))
    assert torch.equal(pooled.std, full.std)
    total = [[0.0] * 4 for _ in range(4)]
    for index in range(3):
        mean, _ = _moments(features, labels, index)
        rows = [row for row, label in zip(features.tolist(), labels.tolist(), strict=True) if label == index]
        for row in rows:
            for i in range(4):
                for j in range(4):
                    total[i][j] += (row[i] - mean[i]) * (row[j] - mean[j]) / (39 + 24 + 59)
    for d in range(4):
        total[d][d] += 1e-5
    expected = [[total[i][j] / (total[i][i] * total[j][j]) ** 0.5 for j in range(4)] for i in range(4)]
    found = pooled.tensors()["correlation"].double()
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-3)
    std = pooled.std[1].double()
    torch.testing.assert_close(pooled.covariance(1), std[:, None] * found * std)


@pytest.mark.parametrize("size", [4, 2, 6])
def test_mapping_pooled_correlations_maps_variances_exactly(size: int) -> None:
    statistics = class_statistics(*_data(), 3, "pooled")
    randomness = torch.Generator().manual_seed(5)
    matrix, root = (torch.randn(size, columns, generator=randomness).double() for columns in (4, size))
    mapped = statistics.mapped(matrix, torch.ones(size), root @ root.T)
    assert mapped.kind == "pooled"
    for index in range(3):
        exact = matrix @ statistics.covariance(index) @ matrix.T + root @ root.T
        torch.testing.assert_close(mapped.std[index].double().square(), exact.diagonal(), rtol=1e-5, atol=1e-6)
    same = statistics.mapped(torch.eye(4), torch.zeros(4))
    for name, tensor in statistics.tensors().items():
        torch.testing.assert_close(same.tensors()[name], tensor)


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_a_row_for_each_class(kind: StatisticsKind) -> None:
    statistics = class_statistics(*_data(dimension=5), 3, kind)
    assert statistics.by_class == [name for name, tensor in statistics.tensors().items() if len(tensor) == 3]


def test_mapping_to_nothing_stays_finite() -> None:
    mapped = class_statistics(*_data(), 3).mapped(torch.zeros(2, 4), torch.ones(2))
    samples, _ = mapped.sample(2, torch.Generator().manual_seed(7))
    torch.testing.assert_close(samples, torch.ones(6, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_joining_equals_measuring_together(kind: StatisticsKind) -> None:
    features, labels = _data()
    more, more_labels = _data(seed=9, sizes=(30, 20))
    joined = class_statistics(features, labels, 3, kind).joined(class_statistics(more, more_labels, 2, kind))
    together = class_statistics(torch.cat([features, more]), torch.cat([labels, more_labels + 3]), 5, kind)
    for name, tensor in together.tensors().items():
        # Pooled correlations are rounded to half precision before and after.
        rtol, atol = (0.0, 2**-10) if name == "correlation" else (None, None)
        torch.testing.assert_close(joined.tensors()[name], tensor, rtol=rtol, atol=atol)


def test_joining_needs_one_kind_and_dimension() -> None:
    statistics = class_statistics(*_data(), 3)
    with pytest.raises(ValueError, match="agree"):
        statistics.joined(class_statistics(*_data(), 3, "diagonal"))
    with pytest.raises(ValueError, match="agree"):
        statistics.joined(class_statistics(*_data(dimension=5), 3))


@pytest.mark.parametrize("kind", KINDS)
def test_saving_and_loading_changes_nothing(kind: StatisticsKind, tmp_path: Path) -> None:
    statistics = class_statistics(*_data(), 3, kind)
    save_file(statistics.tensors(), tmp_path / "statistics.safetensors")
    loaded = ClassStatistics.from_tensors(load_file(tmp_path / "statistics.safetensors"))
    assert loaded.kind == kind
    before, after = (s.sample(3, torch.Generator().manual_seed(10))[0] for s in (statistics, loaded))
    assert torch.equal(before, after)


def test_a_missing_tensor_is_named() -> None:
    with pytest.raises(InlayError, match="std"):
        ClassStatistics.from_tensors({"mean": torch.ones(1, 2), "counts": torch.ones(1)})


def test_bytes_per_class_computed_by_hand() -> None:
    sizes = {kind: class_statistics(*_data(), 3, kind).bytes_per_class() for kind in KINDS}
    assert sizes["diagonal"] == 4 * 4 + 4 * 4 + 8
    assert sizes["full"] == sizes["diagonal"] + 4 * 4 * 2
    assert sizes["shared"] == 4 * 4 + 8 + 6
    assert sizes["pooled"] == sizes["diagonal"] + 11  # 32 bytes for three classes


def test_moving_to_a_device_keeps_everything() -> None:
    statistics = class_statistics(*_data(), 3)
    moved = statistics.to("cpu")
    for name, tensor in statistics.tensors().items():
        assert torch.equal(moved.tensors()[name], tensor)


def test_bad_input_is_refused() -> None:
    features, labels = _data()
    with pytest.raises(ValueError, match="two members"):
        class_statistics(features[:1], torch.tensor([0]), 1)
    with pytest.raises(ValueError, match=r"0\.\.1"):
        class_statistics(features, labels, 2)
    with pytest.raises(ValueError, match=r"0\.\.2"):
        class_statistics(features, labels - 1, 3)
    with pytest.raises(ValueError, match="finite"):
        class_statistics(features * torch.nan, labels, 3)
    with pytest.raises(ValueError, match="labels"):
        class_statistics(features, labels[:4], 3)
    with pytest.raises(ValueError, match="kind"):
        class_statistics(features, labels, 3, "other")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_mapping_adds_the_residual_to_the_spread(kind: StatisticsKind) -> None:
    statistics = class_statistics(*_data(), 3, kind)
    root = torch.tensor([[0.5, 0.1, 0.0, 0.0], [0.0, 0.7, 0.2, 0.0], [0.0, 0.0, 0.9, 0.3], [0.1, 0.0, 0.0, 0.4]])
    noise = root @ root.T
    matrix, offset = 2 * torch.eye(4), torch.ones(4)
    plain, noisy = statistics.mapped(matrix, offset), statistics.mapped(matrix, offset, noise)
    assert torch.equal(plain.mean, noisy.mean) and noisy.kind == kind
    added = noise.double() if kind == "full" else torch.diag(noise.double().diagonal())
    for index in range(3):
        # Correlations are kept in half precision.
        torch.testing.assert_close(noisy.covariance(index), plain.covariance(index) + added, rtol=5e-3, atol=5e-3)
