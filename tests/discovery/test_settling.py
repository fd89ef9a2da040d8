import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from inlay.discovery.settling import settled_assignments

_SIZE, _PRIOR, _FLOOR = 4, 1.5, 0.05


def _blobs(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three long clouds that differ in direction and size, and labels of which a fifth are wrong."""
    randomness = torch.Generator().manual_seed(seed)
    features, labels = [], []
    for index, count in enumerate((60, 80, 100)):
        shape = torch.randn(_SIZE, _SIZE, generator=randomness)
        centre = 3 * torch.randn(_SIZE, generator=randomness)
        features.append(torch.randn(count, _SIZE, generator=randomness) @ shape + centre)
        labels.append(torch.full((count,), index))
    truth = torch.cat(labels)
    wrong = torch.rand(len(truth), generator=randomness) < 0.2
    return torch.cat(features), torch.where(wrong, (truth + 1) % 3, truth)


def _slow_round(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Give each image to the likeliest Gaussian, image by image."""
    wide = features.double()
    spreads, means, counts = [], [], []
    for index in range(classes):
        members = torch.stack([row for row, label in zip(wide, labels.tolist(), strict=True) if label == index])
        means.append(members.mean(dim=0))
        difference = members - means[-1]
        spreads.append(sum(torch.outer(row, row) for row in difference) / (len(members) - 1))
        counts.append(len(members))
    within = torch.stack([torch.as_tensor(spread) for spread in spreads]).mean(dim=0)
    share = max(0.2, _PRIOR * _SIZE / (_PRIOR * _SIZE + sum(counts) / classes))
    added = _FLOOR * within.diagonal().mean() * torch.eye(_SIZE)
    found = []
    for row in wide:
        scores = [
            MultivariateNormal(mean, (1 - share) * spread + share * within + added).log_prob(row).item()  # type: ignore[no-untyped-call]
            for mean, spread in zip(means, spreads, strict=True)
        ]
        found.append(scores.index(max(scores)))
    return torch.tensor(found)


def _settled(features: Tensor, labels: Tensor, rounds: int, classes: int = 3) -> Tensor:
    return settled_assignments(features, labels, classes, rounds, "full", _PRIOR, _FLOOR, _SIZE)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rounds_equal_the_loops(seed: int) -> None:
    features, labels = _blobs(seed)
    expected = labels
    for rounds in range(1, 4):
        expected = _slow_round(features, expected, 3)
        assert torch.equal(_settled(features, labels, rounds), expected)
    assert not torch.equal(expected, labels)


def test_no_round_changes_nothing() -> None:
    features, labels = _blobs()
    assert torch.equal(_settled(features, labels, 0), labels)


def test_it_ends_where_nothing_changes() -> None:
    features, labels = _blobs()
    settled = _settled(features, labels, 200)
    assert torch.equal(_slow_round(features, settled, 3), settled)


def test_a_class_keeps_two_images() -> None:
    randomness = torch.Generator().manual_seed(3)
    clouds = 0.3 * torch.randn(2, 60, _SIZE, generator=randomness)
    clouds[0, :, 0] += 5
    clouds[1, :, 0] -= 5
    features, labels = clouds.flatten(0, 1), torch.tensor([0, 2]).repeat_interleave(60)
    # One image of each cloud, which one round would give back to it.
    labels[[0, 60]] = 1
    assert (_slow_round(features, labels, 3) == 1).sum() < 2
    assert torch.equal(_settled(features, labels, 5), labels)


def test_a_class_without_images_stays_without() -> None:
    features, labels = _blobs()
    settled = _settled(features, labels, 3, classes=4)
    assert torch.equal(settled, _settled(features, labels, 3))
