import pytest
import torch

from inlay.discovery.statistics import ClassStatistics, StatisticsKind, class_statistics
from inlay.increments.shrinkage import shrunk

KINDS: list[StatisticsKind] = ["full", "diagonal"]


def _statistics(sizes: list[int], kind: StatisticsKind, seed: int, size: int = 4) -> ClassStatistics:
    randomness = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    mixing = torch.randn(size, size, generator=randomness, dtype=torch.float64)
    features = torch.randn(len(labels), size, generator=randomness, dtype=torch.float64) @ mixing
    return class_statistics(features + labels[:, None], labels, len(sizes), kind, allow_empty=True)


@pytest.mark.parametrize("strength", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_spread_is_the_weighted_mean_of_its_own_and_the_typical_one(kind: StatisticsKind, strength: float) -> None:
    new, known = _statistics([5, 0, 30], kind, 0), _statistics([40, 0, 20], kind, 1)
    after = shrunk(new, known, strength)
    for index, images in ((0, 5), (2, 30)):
        own, found = new.covariance(index).tolist(), after.covariance(index).tolist()
        for row in range(4):
            for column in range(4):
                typical = (known.covariance(0)[row, column].item() + known.covariance(2)[row, column].item()) / 2
                expected = ((images - 1) * own[row][column] + strength * typical) / (images - 1 + strength)
                # Correlations are kept in half precision.
                assert found[row][column] == pytest.approx(expected, rel=5e-3, abs=5e-3)


def test_pooled_correlations_stay_and_variances_move_as_alone() -> None:
    (new, known), (plain, plain_known) = (
        (_statistics([5, 0, 30], kind, 0), _statistics([40, 0, 20], kind, 1)) for kind in ("pooled", "diagonal")
    )
    after = shrunk(new, known, 5.0)
    assert after.kind == "pooled" and torch.equal(after.tensors()["correlation"], new.tensors()["correlation"])
    torch.testing.assert_close(after.std, shrunk(plain, plain_known, 5.0).std)


def test_more_images_are_trusted_more() -> None:
    new, known = _statistics([5, 500], "full", 2), _statistics([50], "full", 3)
    moved = [(shrunk(new, known, 5.0).covariance(i) - new.covariance(i)).norm() for i in range(2)]
    towards = [(known.covariance(0) - new.covariance(i)).norm() for i in range(2)]
    assert moved[0] / towards[0] == pytest.approx(5 / 9, rel=0.01)
    assert moved[1] / towards[1] == pytest.approx(5 / 504, rel=0.2)


def test_five_images_get_a_spread_in_every_direction() -> None:
    new, known = _statistics([5], "full", 4, size=12), _statistics([200], "full", 5, size=12)
    before, after = (torch.linalg.eigvalsh(each.covariance(0)) for each in (new, shrunk(new, known, 5.0)))
    assert (before < 0.01 * before.max()).sum() >= 8
    assert (after < 0.01 * torch.linalg.eigvalsh(known.covariance(0)).min()).sum() == 0


def test_means_counts_and_empty_classes_stay() -> None:
    new, known = _statistics([5, 0, 3], "full", 6), _statistics([40], "full", 7)
    after = shrunk(new, known, 5.0)
    assert torch.equal(after.mean, new.mean) and torch.equal(after.counts, new.counts)
    assert torch.equal(after.std[1], new.std[1]) and not after.covariance(1).any()


def test_a_shared_spread_stays() -> None:
    new, known = _statistics([5, 4], "shared", 8), _statistics([40], "shared", 9)
    assert shrunk(new, known, 5.0) is new


def test_statistics_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="must agree; got full in 4 dimensions and diagonal in 4"):
        shrunk(_statistics([5], "full", 1), _statistics([5], "diagonal", 1), 1.0)
