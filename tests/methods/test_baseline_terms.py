import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from inlay.backbones.twin import TwinNetwork
from inlay.discovery.consistency import view_consistency
from inlay.discovery.neighbourhood import neighbourhood_contrastive
from inlay.discovery.pairs import cosine_pairs, extreme_pairs, pairwise_bce, rank_pairs
from inlay.discovery.queue import FeatureQueue
from inlay.discovery.softened import softened_distillation
from inlay.discovery.student import target_divergence
from inlay.methods import baseline_terms
from inlay.methods.model import StageModel, StageOutputs
from inlay.methods.targets import ClusterTargets
from inlay.methods.task import StageTask
from inlay.methods.term import Term
from tiny_stage import outputs_of, quick, tiny_model, tiny_task

HALF = 64


def stage(name: str, changes: dict[str, Any] | None = None) -> tuple[StageTask, StageModel, StageOutputs]:
    task = tiny_task(quick(name, changes))
    model = tiny_model(task)
    return task, model, outputs_of(task, model)


def novel_scores(model: StageModel, outputs: StageOutputs) -> tuple[Tensor, Tensor]:
    assert model.novel_head is not None
    return model.novel_head(outputs.first), model.novel_head(outputs.second)


def probabilities(model: StageModel, outputs: StageOutputs) -> tuple[Tensor, Tensor]:
    first, second = novel_scores(model, outputs)
    return functional.softmax(first, dim=1), functional.softmax(second, dim=1)


@pytest.mark.parametrize("largest", [2, 5])
def test_rank_pairs_are_those_of_the_first_view(largest: int) -> None:
    _, model, outputs = stage("autonovel", {"pairs.largest": largest})
    pairs = rank_pairs(outputs.first, largest)
    assert len(pairs) < pairs.sum() < pairs.numel()
    torch.testing.assert_close(baseline_terms.PAIRS.loss(outputs), pairwise_bce(*probabilities(model, outputs), pairs))


def test_more_largest_features_than_there_are_pair_everything() -> None:
    _, model, outputs = stage("autonovel", {"pairs.largest": 1000})
    everything = torch.ones(12, 12)
    expected = pairwise_bce(*probabilities(model, outputs), everything)
    torch.testing.assert_close(baseline_terms.PAIRS.loss(outputs), expected)


@pytest.mark.parametrize("threshold", [0.8, 0.9])
def test_cosine_pairs_are_those_above_the_threshold(threshold: float) -> None:
    _, model, outputs = stage("ncl", {"pairs.threshold": threshold})
    pairs = cosine_pairs(outputs.first, threshold)
    assert len(pairs) < pairs.sum() < pairs.numel()
    torch.testing.assert_close(baseline_terms.PAIRS.loss(outputs), pairwise_bce(*probabilities(model, outputs), pairs))


def test_consistency_compares_the_softmaxes_of_a_linear_head() -> None:
    _, model, outputs = stage("frost")
    loss = baseline_terms.CONSISTENCY.loss(outputs)
    torch.testing.assert_close(loss, view_consistency(*probabilities(model, outputs)))
    assert loss > 0


@pytest.mark.parametrize("name", ["dtc", "restune"])
def test_consistency_compares_the_assignments_of_a_clustering_head_as_they_are(name: str) -> None:
    _, model, outputs = stage(name)
    loss = baseline_terms.CONSISTENCY.loss(outputs)
    torch.testing.assert_close(loss, view_consistency(*novel_scores(model, outputs)))
    assert not torch.isclose(loss, view_consistency(*probabilities(model, outputs)))


def test_consistency_is_ramped_by_the_progress() -> None:
    weight = baseline_terms.CONSISTENCY.weight
    settings = quick("autonovel", {"consistency.weight": 5.0, "consistency.ramp": 0.4})
    assert weight(settings, 0.0) == pytest.approx(5 * math.exp(-5))
    assert weight(settings, 0.1) == pytest.approx(5 * math.exp(-5 * 0.75**2))
    assert weight(settings, 0.4) == weight(settings, 1.0) == 5.0
    assert weight(settings.changed({"consistency.ramp": 0.0}), 0.0) == 5.0


def queue_of(model: StageModel) -> FeatureQueue:
    queue = model.others["queue"]
    assert isinstance(queue, FeatureQueue)
    return queue


@pytest.mark.parametrize("published", [True, False])
def test_neighbourhood_uses_the_queue_before_the_batch_enters_it(published: bool) -> None:
    changes = {"neighbourhood.queue": 40, "neighbourhood.temperature": 0.2, "neighbourhood.share": 0.3}
    task, model, outputs = stage("ncl", {**changes, "neighbourhood.published_ranking": published})
    assert task.classes == 2
    features = functional.normalize(outputs.first.detach(), dim=1)
    for calls in (1, 2, 3, 4):
        before = queue_of(model).features.clone()
        loss = baseline_terms.NEIGHBOURHOOD.loss(outputs)
        expected = neighbourhood_contrastive(outputs.first, outputs.second, before, 10, 0.2, 0.3, published)
        torch.testing.assert_close(loss, expected)
        places = [(row + 12 * (calls - 1)) % 40 for row in range(12)]
        torch.testing.assert_close(queue_of(model).features[places], features)
        others = [row for row in range(40) if row not in places]
        assert torch.equal(queue_of(model).features[others], before[others])


def test_neighbourhood_has_its_gradient_after_the_batch_has_entered_the_queue() -> None:
    _, model, outputs = stage("ncl", {"neighbourhood.queue": 40})
    before = queue_of(model).features.clone()
    found, wanted = (
        torch.autograd.grad(loss, outputs.first, retain_graph=True)[0]
        for loss in (
            baseline_terms.NEIGHBOURHOOD.loss(outputs),
            neighbourhood_contrastive(outputs.first, outputs.second, before, 10, quirk=True),
        )
    )
    torch.testing.assert_close(found, wanted)
    assert bool(found.any())


def test_a_queue_of_one_place_has_one_neighbour() -> None:
    _, model, outputs = stage("ncl", {"neighbourhood.queue": 1})
    before = queue_of(model).features.clone()
    expected = neighbourhood_contrastive(outputs.first, outputs.second, before, 1, quirk=True)
    torch.testing.assert_close(baseline_terms.NEIGHBOURHOOD.loss(outputs), expected)


@pytest.mark.parametrize("epochs", [2, 3, 49, 98, 200])
def test_neighbourhood_has_no_weight_in_the_first_epoch_which_fills_the_queue(epochs: int) -> None:
    steps = 7
    settings = quick("ncl", {"training.epochs": epochs, "neighbourhood.weight": 2.0})
    weights = [baseline_terms.NEIGHBOURHOOD.weight(settings, step / (epochs * steps)) for step in range(epochs * steps)]
    assert weights == [0.0] * steps + [2.0] * (epochs - 1) * steps


def test_neighbourhood_has_its_weight_at_once_in_a_stage_of_one_epoch() -> None:
    settings = quick("ncl", {"training.epochs": 1, "neighbourhood.weight": 2.0})
    assert baseline_terms.NEIGHBOURHOOD.weight(settings, 0.0) == 2.0


@pytest.mark.parametrize(("mean", "factor"), [("elements", 1), ("samples", 2)])
@pytest.mark.parametrize("name", ["dtc", "restune"])
def test_clustering_teaches_each_image_its_own_target(name: str, mean: str, factor: int) -> None:
    _, model, outputs = stage(name, {"clustering.mean": mean})
    targets = model.others["targets"]
    assert isinstance(targets, ClusterTargets)
    targets.rows.copy_(torch.rand(targets.rows.shape, generator=torch.Generator().manual_seed(3)).softmax(dim=1))
    own = torch.stack([targets.rows[index] for index in outputs.batch.indices.tolist()])
    expected = target_divergence(own, novel_scores(model, outputs)[0]) * factor
    torch.testing.assert_close(baseline_terms.CLUSTERING.loss(outputs), expected)


@pytest.mark.parametrize("extremes", [1, 4])
def test_ranking_pairs_the_twin_by_what_the_old_head_says(extremes: int) -> None:
    task, model, outputs = stage("restune", {"ranking.extremes": extremes})
    old = functional.softmax(task.head(outputs.first[:, :HALF]), dim=1)
    pairs, mask = extreme_pairs(old @ old.T, extremes)
    twin = functional.softmax(model.others["ranking"](outputs.first[:, HALF:]), dim=1)
    torch.testing.assert_close(baseline_terms.RANKING.loss(outputs), pairwise_bce(twin, twin, pairs, mask=mask))


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_softened_distillation_holds_the_old_head_on_the_old_group(temperature: float) -> None:
    task, _, outputs = stage("restune", {"softened.temperature": temperature})
    with torch.no_grad():
        before = task.head(task.network(outputs.views[0]))
    expected = softened_distillation(task.head(outputs.first[:, :HALF]), before, temperature)
    torch.testing.assert_close(baseline_terms.SOFTENED.loss(outputs), expected)


def reached(module: nn.Module) -> bool:
    gradients = [parameter.grad for parameter in module.parameters()]
    assert len({gradient is None for gradient in gradients}) == 1
    return any(gradient is not None and bool(gradient.any()) for gradient in gradients)


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (baseline_terms.CLUSTERING, {"shared", "old", "twin", "novel_head"}),
        (baseline_terms.CONSISTENCY, {"shared", "old", "twin", "novel_head"}),
        (baseline_terms.RANKING, {"shared", "twin", "ranking"}),
        (baseline_terms.SOFTENED, {"shared", "old"}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_each_term_trains_in_a_twin_network(term: Term, expected: set[str]) -> None:
    _, model, outputs = stage("restune")
    torch.autograd.backward([term.loss(outputs)])
    trunk = model.trunk
    assert isinstance(trunk, TwinNetwork) and model.novel_head is not None
    parts: dict[str, nn.Module] = {"shared": trunk.shared, "old": trunk.old, "twin": trunk.twin}
    parts |= {"novel_head": model.novel_head, "ranking": model.others["ranking"]}
    assert {name for name, part in parts.items() if reached(part)} == expected
