import math

import pytest
import torch
from torch import nn

import slow_losses
from increment_cases import course, quick, standings
from inlay import branches
from inlay.backbones.incremental_resnets import without_last_relu
from inlay.engine.batch import Batch
from inlay.engine.randomness import generator
from inlay.heads import kaiming_linear
from inlay.increments.classifier import Classifier
from inlay.increments.course import Standing, stage_task
from inlay.increments.herding import herd
from inlay.increments.increment import System
from inlay.increments.nearest_mean import class_means
from inlay.increments.outputs import Outputs, features_and_maps
from inlay.increments.scores import score_stage
from inlay.increments.systems import icarl
from inlay.increments.work import IncrementWork

GATES = ["full", "frozen", "imm", "constant", "amm"]


def _batch(count: int, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(0, total, total // count)[:count], torch.tensor(5)


@pytest.mark.parametrize("system", [icarl.PUBLISHED, icarl.FAIR], ids=["published", "fair"])
@pytest.mark.parametrize("gate", GATES)
def test_classes_are_learned_stage_by_stage_without_growth(system: System, gate: str) -> None:
    found = standings(quick(system, branch__gate=gate, base__epochs=1, stage__epochs=1))
    images = course()
    sizes = []
    for standing in found:
        inputs = images.form.prepare(images.test[:3])
        assert standing.classifier(inputs).shape == (3, images.seen(standing.index))
        assert not any(p.requires_grad for p in standing.classifier.parameters())
        sizes.append(branches.folded_parameters(standing.classifier.network, inputs))
    assert len(set(sizes)) == 1
    assert (found[-1].merge_difference is None) == (gate in ("full", "frozen"))
    assert all(standing.merge_difference is None or standing.merge_difference < 1e-4 for standing in found)


def test_a_frozen_network_keeps_its_features() -> None:
    found, images = standings(quick(icarl.FAIR, branch__gate="frozen")), course()
    inputs = images.form.prepare(images.test[:9])
    assert torch.allclose(found[0].classifier.network(inputs), found[-1].classifier.network(inputs), atol=1e-5)


@pytest.fixture(scope="module")
def base() -> Standing:
    return standings(quick(icarl.FAIR), course(cut=(3,)))[0]


@pytest.mark.parametrize("system", [icarl.PUBLISHED, icarl.FAIR], ids=["published", "fair"])
def test_losses_are_those_of_scores_and_of_the_classifier_before(system: System, base: Standing) -> None:
    task = stage_task(quick(system), course(), base, 0, torch.device("cpu"))
    head = icarl.linear_head(task)
    assert torch.equal(head.weight[:3], base.classifier.head.weight)  # type: ignore[arg-type]
    network = task.opened().eval()
    rows, key = _batch(12, len(task.labels))
    batch = Batch(task.pixels[rows], task.pixels[rows], rows, rows, key)
    work = IncrementWork(task, Classifier(network, head), system.learn.losses(task))  # type: ignore[attr-defined]
    losses = work.eval()(batch)
    inputs, labels = task.form.prepare(task.pixels[rows]), task.labels[rows]
    with torch.no_grad():
        scores, old = head(network(inputs)), base.classifier(inputs)
    if system is icarl.PUBLISHED:
        total = 0.0
        for row in range(12):
            for column in range(5):
                target = float(old[row, column].sigmoid()) if column < 3 else float(labels[row] == column)
                chance = float(scores[row, column].sigmoid())
                total -= target * math.log(chance) + (1 - target) * math.log(1 - chance)
        assert losses["binary"].item() == pytest.approx(total / 60, rel=1e-4)
    else:
        expected = slow_losses.cross_entropy(scores, labels.tolist())
        assert losses["cross-entropy"].item() == pytest.approx(expected, rel=1e-4)
        wanted, found = (old / 2).softmax(dim=1), (scores[:, :3] / 2).log_softmax(dim=1)
        divergence = (wanted * (wanted.log() - found)).sum(dim=1).mean().item()
        assert losses["distillation"].item() == pytest.approx(divergence, rel=1e-3, abs=1e-6)


def test_a_stage_starts_with_the_scores_of_the_one_before(base: Standing) -> None:
    for gate in GATES:
        task = stage_task(quick(icarl.FAIR, branch__gate=gate), course(), base, 0, torch.device("cpu"))
        inputs = task.first_inputs(20)
        started = icarl.linear_head(task)(task.opened().eval()(inputs))
        assert torch.allclose(started[:, :3], base.classifier(inputs), atol=1e-4)


def test_the_head_reads_behind_the_last_relu_and_exemplars_are_chosen_and_compared_before_it() -> None:
    system = quick(icarl.PUBLISHED, backbone=icarl.PUBLISHED.recipe.backbone, base__epochs=1)
    images = course(cut=(3,), images=12)
    (standing,) = standings(system, images)
    network = standing.classifier.network
    task = stage_task(system, images, None, 0, torch.device("cpu"))
    behind, raw = task.features(network), task.features(without_last_relu(network))
    assert behind.min() >= 0 > raw.min()
    assert torch.allclose(task.features(standing.classifier), standing.classifier.head(behind), atol=1e-5)
    chosen, others = (herd(features, task.labels, 3, 4) for features in (raw, behind))
    rows = images.rows(0)
    assert all(map(torch.equal, standing.memory.ranked, (rows[places] for places in chosen)))
    assert any(not torch.equal(places, other) for places, other in zip(chosen, others, strict=True))
    assert torch.equal(task.balanced(network).pixels, task.pixels[torch.cat(chosen)])
    labels = images.test_labels[images.test_labels < 3]
    inputs = images.form.prepare(images.test[images.test_labels < 3])
    kept = images.form.prepare(images.train[standing.memory.rows])
    with torch.no_grad():
        before = without_last_relu(network)
        means = class_means(before(kept), standing.memory.labels, 3, before(kept.flip(3)))
        right = [
            min(range(3), key=lambda label: math.dist((feature / feature.norm()).tolist(), means[label].tolist()))
            for feature in before(inputs)
        ]
    assert score_stage(images, standing).nme == pytest.approx(
        sum(found == label for found, label in zip(right, labels.tolist(), strict=True)) / len(labels)
    )


def test_new_rows_of_the_head_start_by_kaimings_rule_without_biases(base: Standing) -> None:
    task = stage_task(quick(icarl.PUBLISHED), course(), base, 0, torch.device("cpu"))
    head = icarl.linear_head(task)
    before = base.classifier.head
    assert isinstance(before, nn.Linear) and torch.equal(head.bias[:3], before.bias)
    assert not head.bias[3:].any() and head.weight.requires_grad
    expected = kaiming_linear(64, 5, generator(task.seed, "head"))
    assert torch.equal(head.weight[3:], expected.weight[3:])


def test_published_settings() -> None:
    recipe = icarl.PUBLISHED.recipe
    for training in (recipe.base, recipe.stage):
        assert (training.epochs, training.batch, training.learning_rate, training.weight_decay) == (70, 128, 2.0, 5e-5)
        assert training.decay_at == pytest.approx((0.7, 0.9)) and training.decay_factor == 0.2
        assert (training.optimizer, training.momentum, training.nesterov) == ("sgd", 0.9, False)
    assert (recipe.backbone, recipe.view, recipe.tuning.epochs) == ("resnet32-rebuffi-relu", "weak", 0)
    assert [recipe.memory.share(classes) for classes in (50, 100)] == [20, 20]


def test_maps_are_those_of_the_groups() -> None:
    network = nn.Sequential()
    for name, factor in (("a", 2.0), ("b", 3.0), ("c", 5.0)):
        layer = nn.Linear(1, 1, bias=False)
        nn.init.constant_(layer.weight, factor)
        network.add_module(name, layer)
    passed, maps = features_and_maps(network, torch.ones(1, 1), ("a", "c"))
    assert passed.item() == 30 and [found.item() for found in maps] == [2, 30]
    assert features_and_maps(network, torch.ones(1, 1), ())[1] == []
    with pytest.raises(ValueError, match="children named a, d"):
        features_and_maps(network, torch.ones(1, 1), ("a", "d"))


def test_outputs_are_drawn_from_the_view(base: Standing) -> None:
    plain = stage_task(quick(icarl.FAIR), course(), base, 0, torch.device("cpu"))
    moved = stage_task(quick(icarl.FAIR, view="weak"), course(), base, 0, torch.device("cpu"))
    rows, key = _batch(6, len(plain.labels))
    batch = Batch(plain.pixels[rows], plain.pixels[rows], rows, rows, key)
    first, second = (Outputs(task, base.classifier, batch) for task in (plain, moved))
    assert torch.equal(first.inputs, plain.form.prepare(plain.pixels[rows]))
    assert not torch.equal(first.inputs, second.inputs) and torch.equal(first.labels, plain.labels[rows])
