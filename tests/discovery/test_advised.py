"""Densities with the advice of a head that was trained on some classes."""

import math

import pytest
import torch
from torch import Tensor, nn

from inlay.discovery.advised import AdvisedDensities
from inlay.discovery.density import DensityHead, density_head
from inlay.discovery.statistics import class_statistics
from inlay.heads import describe_head, rebuild_head

CLASSES, BASE, SIZE = 5, 3, 4


@pytest.fixture
def densities() -> DensityHead:
    randomness = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % CLASSES
    centres = 3 * torch.randn(CLASSES, SIZE, generator=randomness)
    features = centres[labels] + torch.randn(200, SIZE, generator=randomness)
    head = density_head(class_statistics(features, labels, CLASSES, "pooled"), shrinkage=1.0)
    head.temperature.fill_(2.5)
    return head


@pytest.fixture
def trained() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Linear(SIZE, BASE).requires_grad_(False)


def _features(count: int) -> Tensor:
    return 3 * torch.randn(count, SIZE, generator=torch.Generator().manual_seed(2))


def _slow(scores: list[float], advice: list[float], advised: list[int]) -> list[float]:
    together = math.log(sum(math.exp(scores[c]) for c in advised))
    mixed = {c: (scores[c] + advice[c]) / 2 for c in advised}
    norm = math.log(sum(math.exp(value) for value in mixed.values()))
    return [together + mixed[c] - norm if c in mixed else scores[c] for c in range(len(scores))]


@pytest.mark.parametrize("advised", [[0, 1, 2], [0, 2], [1]])
def test_scores_are_those_of_a_slow_reference(densities: DensityHead, trained: nn.Linear, advised: list[int]) -> None:
    densities, trained, features = densities.double(), trained.double(), _features(20).double()
    mask = torch.tensor([c in advised for c in range(CLASSES)])
    found = AdvisedDensities(densities, trained, mask)(features)
    for row, scores, advice in zip(found, densities(features), trained(features), strict=True):
        assert row.tolist() == pytest.approx(_slow(scores.tolist(), advice.tolist(), advised), abs=1e-9)


def test_advice_moves_nothing_between_old_and_new(densities: DensityHead, trained: nn.Linear) -> None:
    features, advised = _features(50), torch.arange(CLASSES) < BASE
    plain = densities(features).softmax(dim=1)
    found = AdvisedDensities(densities, trained, advised)(features).softmax(dim=1)
    assert torch.allclose(found[:, BASE:], plain[:, BASE:], atol=1e-6)
    assert torch.allclose(found[:, :BASE].sum(dim=1), plain[:, :BASE].sum(dim=1), atol=1e-6)
    assert not torch.allclose(found[:, :BASE], plain[:, :BASE], atol=0.01)


def test_a_class_that_is_gone_stays_out_of_reach(densities: DensityHead, trained: nn.Linear) -> None:
    densities.present[BASE] = False
    found = AdvisedDensities(densities, trained, torch.arange(CLASSES) < BASE)(_features(50))
    assert bool((found.softmax(dim=1)[:, BASE] == 0).all())


def test_a_rebuilt_head_scores_the_same(densities: DensityHead, trained: nn.Linear) -> None:
    head = AdvisedDensities(densities, trained, torch.tensor([True, False, True, False, False]))
    again = rebuild_head(describe_head(head), head.state_dict())
    assert type(again) is AdvisedDensities
    assert torch.equal(again(_features(20)), head(_features(20)))


def test_sizes_have_to_go_together(densities: DensityHead, trained: nn.Linear) -> None:
    with pytest.raises(ValueError, match="must be among the first 3 of 5"):
        AdvisedDensities(densities, trained, torch.arange(CLASSES) == BASE)
    with pytest.raises(ValueError, match="must be among the first 3 of 5"):
        AdvisedDensities(densities, trained, torch.zeros(CLASSES, dtype=torch.bool))
    with pytest.raises(ValueError, match="does not go with densities of 5"):
        AdvisedDensities(densities, nn.Linear(SIZE, CLASSES + 1), torch.arange(CLASSES) < BASE)
