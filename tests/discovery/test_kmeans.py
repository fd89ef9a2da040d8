import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans as ReferenceKMeans
from torch import Tensor

from inlay.discovery import kmeans as module
from inlay.discovery.kmeans import KMeans, kmeans


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _blobs(clusters: int, members: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = _seeded(seed)
    centres = 20 * torch.nn.functional.one_hot(torch.arange(clusters), 6).double()
    truth = torch.arange(clusters).repeat_interleave(members)
    return centres[truth] + torch.randn(len(truth), 6, generator=generator, dtype=torch.float64), truth


def _assert_consistent(points: Tensor, result: KMeans) -> None:
    """Check with loops that every point belongs to its nearest centre and that the inertia is theirs."""
    total = 0.0
    for point, label in zip(points, result.labels.tolist(), strict=True):
        distances = [float((point - centre).square().sum()) for centre in result.centroids]
        assert distances[label] <= min(distances) + 1e-6
        total += distances[label]
    assert result.inertia == pytest.approx(total, rel=1e-5, abs=1e-6)


def test_separated_blobs_are_recovered() -> None:
    points, truth = _blobs(5, 20, 42)
    result = kmeans(points + 1000, 5, _seeded())
    for cluster in range(5):
        members = result.labels[truth == cluster]
        assert (members == members[0]).all()
        expected = points[truth == cluster].mean(dim=0) + 1000
        torch.testing.assert_close(result.centroids[members[0]], expected)
    assert set(result.labels.tolist()) == set(range(5))
    _assert_consistent(points + 1000, result)


def test_repeats_itself_bit_for_bit() -> None:
    points = torch.rand(200, 5, generator=_seeded(1))
    first, second = (kmeans(points, 7, _seeded(3), restarts=3) for _ in range(2))
    assert torch.equal(first.centroids, second.centroids)
    assert torch.equal(first.labels, second.labels)
    assert first.inertia == second.inertia


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_repeats_itself_bit_for_bit_on_a_gpu() -> None:
    points = torch.randn(40_000, 64, generator=_seeded(9)).cuda()
    first, second = (kmeans(points, 20, _seeded(3), restarts=2) for _ in range(2))
    assert first.centroids.is_cuda and first.labels.is_cuda
    assert torch.equal(first.centroids, second.centroids)
    assert torch.equal(first.labels, second.labels)


def test_is_as_good_as_scikit_learn() -> None:
    points = torch.randn(300, 3, generator=_seeded(2), dtype=torch.float64)
    ours = kmeans(points, 6, _seeded(), restarts=20)
    theirs = ReferenceKMeans(6, n_init=20, random_state=0).fit(points.numpy())
    assert ours.inertia == pytest.approx(theirs.inertia_, rel=0.02)


def test_the_best_start_is_kept() -> None:
    points = torch.randn(150, 4, generator=_seeded(4), dtype=torch.float64)
    generator = _seeded(5)
    singles = [kmeans(points, 8, generator, restarts=1).inertia for _ in range(6)]
    assert kmeans(points, 8, _seeded(5), restarts=6).inertia == min(singles)
    assert min(singles) < max(singles)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    points, _ = _blobs(4, 15, 43)
    whole = kmeans(points, 4, _seeded())
    monkeypatch.setattr(module, "_CHUNK", 7)
    parts = kmeans(points, 4, _seeded())
    assert torch.equal(whole.labels, parts.labels)
    torch.testing.assert_close(whole.centroids, parts.centroids)


def test_an_empty_cluster_moves_to_the_farthest_point() -> None:
    points = torch.tensor([[0.0], [1.0], [10.0], [50.0]])
    labels, distances = torch.tensor([0, 0, 0, 0]), torch.tensor([0.0, 1.0, 100.0, 2500.0])
    centres = module._centres(points, labels, distances, 3)
    assert centres.flatten().tolist() == [15.25, 50.0, 10.0]


def test_seeds_are_drawn_by_squared_distance() -> None:
    points = torch.tensor([[0.0], [1.0], [3.0]])
    generator, counts = _seeded(6), torch.zeros(3, 3)
    for _ in range(6000):
        first, second = (int(seed) for seed in module._seeds(points, 2, generator).flatten())
        counts[{0: 0, 1: 1, 3: 2}[first], {0: 0, 1: 1, 3: 2}[second]] += 1
    expected = torch.tensor([[0.0, 1 / 10, 9 / 10], [1 / 5, 0.0, 4 / 5], [9 / 13, 4 / 13, 0.0]]) / 3
    torch.testing.assert_close(counts / counts.sum(), expected, atol=0.02, rtol=0)


def test_a_seed_is_never_drawn_twice_from_distinct_points() -> None:
    points, generator = torch.tensor([[0.0], [1.0], [5.0], [9.0]]), _seeded(10)
    for _ in range(50):
        assert sorted(module._seeds(points, 4, generator).flatten().tolist()) == [0.0, 1.0, 5.0, 9.0]


def test_spherical_clusters_are_directions() -> None:
    points, truth = _blobs(3, 20, 44)
    lengths = torch.rand(len(points), 1, generator=_seeded(7), dtype=torch.float64) * 10 + 0.1
    result = kmeans(points * lengths, 3, _seeded(), spherical=True)
    torch.testing.assert_close(result.centroids.norm(dim=1), torch.ones(3, dtype=torch.float64))
    directions = points / points.norm(dim=1, keepdim=True)
    _assert_consistent(directions, result)
    for cluster in range(3):
        mean = directions[truth == cluster].mean(dim=0)
        found = result.centroids[result.labels[truth == cluster][0]]
        torch.testing.assert_close(found, mean / mean.norm())


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=12),
    st.integers(1, 12),
    st.booleans(),
)
def test_duplicates_and_many_clusters_give_a_consistent_result(
    rows: list[tuple[int, int]], k: int, spherical: bool
) -> None:
    points = torch.tensor(rows, dtype=torch.float64)
    k = min(k, len(points))
    result = kmeans(points, k, _seeded(8), restarts=2, spherical=spherical)
    assert torch.isfinite(result.centroids).all()
    _assert_consistent(torch.nn.functional.normalize(points) if spherical else points, result)
    if k == len(points) and not spherical:
        assert result.inertia == pytest.approx(0, abs=1e-9)


def test_bad_input_is_refused() -> None:
    points = torch.rand(4, 2)
    with pytest.raises(ValueError, match="number of points"):
        kmeans(points, 5, _seeded())
    with pytest.raises(ValueError, match="number of points"):
        kmeans(points, 0, _seeded())
    with pytest.raises(ValueError, match="restarts"):
        kmeans(points, 2, _seeded(), restarts=0)
    with pytest.raises(ValueError, match="finite"):
        kmeans(torch.tensor([[0.0], [torch.nan]]), 1, _seeded())
