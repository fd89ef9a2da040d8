from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from inlay.branches import export_onnx
from inlay.discovery import repair
from inlay.discovery.statistics import StatisticsKind, class_statistics

KINDS: list[StatisticsKind] = ["full", "diagonal", "shared", "pooled"]
SIZES = (40, 25, 60, 33)


def _data(seed: int = 0, sizes: tuple[int, ...] = SIZES, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Classes in 4 dimensions, the last of which never varies."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    mixing = torch.randn(len(sizes), 4, 4, generator=generator, dtype=torch.float64)
    centres = 5 * torch.randn(len(sizes), 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), 4, generator=generator, dtype=torch.float64)
    features = centres[labels] + spread * torch.einsum("nij,nj->ni", mixing[labels], noise)
    features[:, 3] = 2.0
    order = torch.randperm(len(labels), generator=generator)
    return features[order], labels[order]


def _slow_moments(rows: list[list[float]]) -> tuple[Tensor, Tensor]:
    size = len(rows[0])
    mean = [sum(row[d] for row in rows) / len(rows) for d in range(size)]
    covariance = [
        [sum((row[i] - mean[i]) * (row[j] - mean[j]) for row in rows) / (len(rows) - 1) for j in range(size)]
        for i in range(size)
    ]
    return torch.tensor(mean, dtype=torch.float64), torch.tensor(covariance, dtype=torch.float64)


@pytest.mark.parametrize("sizes", [(5, 9, 4), (2, 1, 1), (1, 1)])
@pytest.mark.parametrize("diagonal", [False, True])
def test_pooled_moments_are_those_of_the_samples(sizes: tuple[int, ...], diagonal: bool) -> None:
    features, labels = _data(1, sizes)
    groups = [features[labels == index] for index in range(len(sizes))]
    # What is said of a single sample's spread must not count.
    known = [torch.cov(group.T) if len(group) > 1 else torch.full((4, 4), 7.0).double() for group in groups]
    spreads = torch.stack([spread.diagonal() if diagonal else spread for spread in known])
    means = torch.stack([group.mean(dim=0) for group in groups])
    mean, spread = repair.pooled_moments(torch.tensor(sizes), means, spreads)
    expected_mean, expected = _slow_moments(features.tolist())
    torch.testing.assert_close(mean, expected_mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(spread, expected.diagonal() if diagonal else expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
@pytest.mark.parametrize("sources", [[1], [3, 0]])
def test_a_merge_equals_measuring_the_union(kind: StatisticsKind, sources: list[int]) -> None:
    features, labels = _data()
    merged = repair.merged(class_statistics(features, labels, 4, kind), sources, 2)
    joint = labels.clone()
    for source in sources:
        joint[labels == source] = 2
    expected = class_statistics(features, joint, 4, kind, allow_empty=True)
    assert torch.equal(merged.counts, expected.counts) and merged.kind == kind
    torch.testing.assert_close(merged.mean, expected.mean)
    for index in range(4):
        std = expected.std[index].double()
        # Correlations are stored in half precision.
        allowed = 2e-3 * std[:, None] * std + 1e-9
        assert ((merged.covariance(index) - expected.covariance(index)).abs() <= allowed).all()
    torch.testing.assert_close(merged.std, expected.std)


def test_merged_shared_deviations_are_exact_where_all_classes_have_them() -> None:
    features, labels = _data(spread=0.0)
    noise = torch.randn(25, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    even = torch.cat([features[labels == index][:25] + noise for index in range(4)])
    names = torch.arange(4).repeat_interleave(25)
    merged = repair.merged(class_statistics(even, names, 4, "shared"), [0, 3], 1)
    expected = class_statistics(even, torch.tensor([1, 1, 2, 1])[names], 4, "shared", allow_empty=True)
    for name, tensor in expected.tensors().items():
        torch.testing.assert_close(merged.tensors()[name], tensor)


@pytest.mark.parametrize("kind", KINDS)
def test_one_merge_after_another_is_one_merge(kind: StatisticsKind) -> None:
    start = class_statistics(*_data(), 4, kind)
    once = repair.merged(start, [1, 3], 0)
    twice = repair.merged(repair.merged(start, [1], 3), [3], 0)
    assert torch.equal(once.counts, twice.counts)
    torch.testing.assert_close(once.mean, twice.mean)
    if kind != "shared":  # a shared deviation forgets what each class added to it
        torch.testing.assert_close(once.std, twice.std, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_classes_give_nothing_to_a_merge(kind: StatisticsKind) -> None:
    features, labels = _data()
    statistics = class_statistics(features, labels + 1, 6, kind, allow_empty=True)
    unchanged = repair.merged(statistics, [5], 1)
    moved = repair.merged(statistics, [1, 5], 0)
    nothing = repair.merged(statistics, [5], 0)
    for name, tensor in statistics.tensors().items():
        assert torch.equal(unchanged.tensors()[name], tensor) and torch.equal(nothing.tensors()[name], tensor)
    assert moved.counts.tolist() == [40, 0, 25, 60, 33, 0]
    assert torch.equal(moved.mean[0], statistics.mean[1]) and moved.mean[1].abs().sum() == 0
    assert torch.equal(moved.covariance(0), statistics.covariance(1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_is_given_up_has_no_samples(kind: StatisticsKind) -> None:
    statistics = class_statistics(*_data(), 4, kind)
    left = repair.without(statistics, [1, 3])
    _, labels = left.sample(2, torch.Generator().manual_seed(0))
    assert labels.tolist() == [0, 0, 2, 2] and left.kind == kind
    assert statistics.counts.tolist() == list(SIZES)
    for index in (0, 2):
        assert torch.equal(left.covariance(index), statistics.covariance(index))


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_split_are_measured(kind: StatisticsKind) -> None:
    features, labels = _data()
    mine = features[labels == 2]
    parts = torch.arange(len(mine)) % 3
    found = repair.split(class_statistics(features, labels, 4, kind), 2, mine, parts)
    alone = class_statistics(mine, parts, 3, kind)
    assert found.counts.tolist() == [40, 25, 0, 33, 20, 20, 20] and found.kind == kind
    assert torch.equal(found.mean[4:], alone.mean)
    if kind == "pooled":
        assert torch.equal(found.std[4:], alone.std)
    elif kind != "shared":
        assert all(torch.equal(found.covariance(4 + part), alone.covariance(part)) for part in range(3))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_appends_empty_classes(kind: StatisticsKind) -> None:
    statistics = class_statistics(*_data(), 4, kind)
    wider = repair.padded(statistics, 6)
    assert wider.counts.tolist() == [*SIZES, 0, 0] and len(wider) == 6 and wider.kind == kind
    first, second = (each.sample(3, torch.Generator().manual_seed(1))[0] for each in (statistics, wider))
    assert torch.equal(first, second)
    with pytest.raises(ValueError, match="4 classes already, more than 3"):
        repair.padded(statistics, 3)


def _head(outputs: int = 5) -> nn.Linear:
    head = nn.Linear(4, outputs)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(2)
        head.weight.copy_(torch.randn(outputs, 4, generator=generator))
        head.bias.copy_(torch.randn(outputs, generator=generator))
    return head


def _hostile_features() -> Tensor:
    """Features of all sizes, some of which make every open output as low as can be."""
    directions = torch.randn(500, 4, generator=torch.Generator().manual_seed(3))
    return torch.cat([size * directions for size in (0.0, 1.0, 1e3, 1e6)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_closed_output_never_wins(dtype: torch.dtype) -> None:
    head = _head().to(dtype)
    closed = repair.closed_head(head, [0, 3], 7)
    features = (_hostile_features() / (100 if dtype == torch.float16 else 1)).to(dtype)
    scores = closed(features)
    assert closed.out_features == 7 and closed.weight.dtype == dtype
    assert set(scores.argmax(dim=1).tolist()) <= {1, 2, 4}
    assert torch.equal(scores[:, [1, 2, 4]], head(features)[:, [1, 2, 4]])
    shares = closed(torch.zeros(1, 4, dtype=dtype)).float().softmax(dim=1)
    assert shares[0, [0, 3, 5, 6]].tolist() == [0, 0, 0, 0]
    torch.testing.assert_close(shares.sum(), torch.tensor(1.0))
    assert torch.isfinite(closed.weight).all() and torch.isfinite(closed.bias).all()


def test_closing_copies_the_head() -> None:
    head = _head()
    before = head.weight.clone()
    closed = repair.closed_head(head, [0])
    assert closed is not head and torch.equal(head.weight, before) and not closed.weight.requires_grad
    with pytest.raises(ValueError, match="at least one open output"):
        repair.closed_head(head, range(5))
    with pytest.raises(ValueError, match="5 outputs cannot become one of 3"):
        repair.closed_head(head, [], 3)
    with pytest.raises(ValueError, match=r"with \[5\] closed"):
        repair.closed_head(head, [5])


def test_closed_outputs_survive_onnx(tmp_path: Path) -> None:
    session = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    closed = repair.closed_head(_head(), [0, 3])
    path = tmp_path / "head.onnx"
    export_onnx(closed, torch.zeros(2, 4), path)
    run = session.InferenceSession(str(path))
    (scores,) = run.run(None, {"input": _hostile_features()[:1000].numpy()})
    assert set(scores.argmax(axis=1).tolist()) <= {1, 2, 4}


@pytest.mark.parametrize("kind", KINDS)
def test_a_refitted_head_knows_the_open_classes(kind: StatisticsKind) -> None:
    features, labels = _data(spread=0.2)
    statistics = class_statistics(features, labels, 4, kind)
    state = torch.get_rng_state()
    head = repair.refitted_head(statistics, [1], 100, torch.Generator().manual_seed(0))
    kept = labels != 1
    assert (head(features[kept].float()).argmax(dim=1) == labels[kept]).double().mean() > 0.98
    assert 1 not in head(_hostile_features()).argmax(dim=1)
    assert torch.equal(torch.get_rng_state(), state) and not head.weight.requires_grad
    again = repair.refitted_head(statistics, [1], 100, torch.Generator().manual_seed(0))
    assert torch.equal(head.weight, again.weight) and torch.equal(head.bias, again.bias)


@pytest.mark.parametrize("kind", KINDS)
def test_two_features_of_each_class_make_a_head(kind: StatisticsKind) -> None:
    generator, classes, size = torch.Generator().manual_seed(0), 40, 64
    means = 0.8 * torch.randn(classes, size, generator=generator)
    labels = torch.arange(classes).repeat_interleave(70)
    learned, seen = (means[labels] + torch.randn(len(labels), size, generator=generator) for _ in range(2))
    statistics = class_statistics(learned, labels, classes, kind)
    nearest = (torch.cdist(seen, statistics.mean).argmin(dim=1) == labels).double().mean()
    head = repair.refitted_head(statistics, [], 2, generator)
    assert (head(seen).argmax(dim=1) == labels).double().mean() > nearest - 0.05


def test_a_refit_after_a_merge_gives_both_classes_one_output() -> None:
    features, labels = _data(spread=0.2)
    merged = repair.merged(class_statistics(features, labels, 4), [3], 0)
    head = repair.refitted_head(merged, [3], 300, torch.Generator().manual_seed(0))
    truth = torch.where(labels == 3, 0, labels)
    assert (head(features.float()).argmax(dim=1) == truth).double().mean() > 0.95


def test_statistics_are_never_changed() -> None:
    statistics = class_statistics(*_data(), 4)
    before = {name: tensor.clone() for name, tensor in statistics.tensors().items()}
    features, labels = _data()
    repair.merged(statistics, [1], 0)
    repair.merged(repair.without(statistics, [0]), [1], 0)
    repair.split(statistics, 2, features[labels == 2], torch.arange(60) % 2)
    repair.refitted_head(statistics, [1], 10, torch.Generator())
    assert all(torch.equal(before[name], tensor) for name, tensor in statistics.tensors().items())


def test_drawn_features_have_the_moments_of_the_statistics() -> None:
    features, labels = _data(2)
    statistics = repair.without(class_statistics(features, labels, 4), [1])
    samples, classes = repair._drawn(statistics, 20_000, torch.Generator().manual_seed(0), scale=2.0)
    assert classes.tolist() == [0] * 20_000 + [2] * 20_000 + [3] * 20_000
    for index in (0, 2, 3):
        drawn = samples[classes == index].double()
        assert (drawn.mean(dim=0) - statistics.mean[index]).abs().max() < 1e-4
        deviations = 2 * statistics.std[index].double()
        expected = 4 * statistics.covariance(index)
        assert ((torch.cov(drawn.T) - expected) / (deviations[:, None] * deviations)).abs().max() < 0.05


def test_a_matrix_without_a_root_gets_that_of_a_near_one() -> None:
    broken = torch.tensor([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])
    root = repair._triangular_root(broken.half())
    near = root @ root.T
    assert torch.linalg.eigvalsh(broken).min() < -0.5
    torch.testing.assert_close(near.diagonal(), torch.ones(3))
    assert torch.equal(near.sign(), broken.sign()) and torch.equal(root, root.tril())
