import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import slow_losses
from inlay import branches
from inlay.data.draws import Draws
from inlay.discovery.assignment import assignment_of_first, sinkhorn
from inlay.discovery.repair import without
from inlay.methods import METHODS, method, terms
from inlay.methods.model import StageModel, StageOutputs
from inlay.methods.task import StageTask
from inlay.methods.term import Term
from inlay.methods.terms import TERMS
from inlay.settings import preset
from tiny_stage import OLD_CLASSES, outputs_of, quick, tiny_model, tiny_task


def stage(changes: dict[str, Any] | None = None, name: str = "paper") -> tuple[StageTask, StageModel]:
    task = tiny_task(quick(name, changes))
    return task, tiny_model(task)


def terms_of(name: str) -> tuple[Term, ...]:
    return method(preset(name).method).terms


def value(term: Term, outputs: StageOutputs) -> float:
    return term.loss(outputs).item()


@pytest.mark.parametrize("temperature", [0.5, 0.2])
def test_contrastive_reads_projections_and_temperature(temperature: float) -> None:
    task, model = stage({"contrastive.temperature": temperature})
    outputs = outputs_of(task, model)
    first, second = model.projector(outputs.first), model.projector(outputs.second)
    expected = slow_losses.contrastive(first, second, temperature)
    assert value(terms.CONTRASTIVE, outputs) == pytest.approx(expected, rel=1e-4)


def test_contrastive_form_follows_the_settings() -> None:
    task, model = stage({"contrastive.form": "literal"})
    outputs = outputs_of(task, model)
    first, second = (view.tolist() for view in outputs.projections)
    total = 0.0
    for i in range(len(first)):
        others = sum(math.exp(slow_losses.cosine(first[i], second[j]) / 0.5) for j in range(len(first)) if j != i)
        total += math.log(others) - slow_losses.cosine(first[i], second[i]) / 0.5
    assert value(terms.CONTRASTIVE, outputs) == pytest.approx(total / len(first), rel=1e-4)


def test_distillation_compares_the_first_view_with_the_frozen_network() -> None:
    task, model = stage()
    outputs = outputs_of(task, model)
    frozen = task.network(outputs.views[0])
    expected = slow_losses.distillation(outputs.first, frozen)
    assert value(terms.DISTILLATION, outputs) == pytest.approx(expected, rel=1e-4) and expected > 0.01


def test_distillation_counts_old_classes_for_each_new_one() -> None:
    task, model = stage({"distillation.by_classes": True})
    outputs = outputs_of(task, model)
    assert task.classes != OLD_CLASSES
    expected = slow_losses.distillation(outputs.first, outputs.frozen) * OLD_CLASSES / task.classes
    assert value(terms.DISTILLATION, outputs) == pytest.approx(expected, rel=1e-4)


def test_distillation_does_not_count_classes_that_ended() -> None:
    task, model = stage({"distillation.by_classes": True})
    whole = value(terms.DISTILLATION, outputs_of(task, model))
    fewer = replace(task, statistics=without(task.statistics, [1]))
    assert len(fewer.statistics) == OLD_CLASSES
    found = value(terms.DISTILLATION, outputs_of(fewer, model))
    assert found == pytest.approx(whole * (OLD_CLASSES - 1) / OLD_CLASSES, rel=1e-4)


def test_distillation_form_follows_the_settings() -> None:
    task, model = stage({"distillation.form": "raw"})
    outputs = outputs_of(task, model)
    pairs = zip(outputs.first.tolist(), outputs.frozen.tolist(), strict=True)
    distances = [math.dist(current, frozen) for current, frozen in pairs]
    assert value(terms.DISTILLATION, outputs) == pytest.approx(sum(distances) / len(distances), rel=1e-4)


@pytest.mark.parametrize(("divide", "divisor"), [(False, 1), (True, OLD_CLASSES + 2)])
def test_self_training_teaches_the_joint_head(divide: bool, divisor: int) -> None:
    task, model = stage({"self_training.divide_by_classes": divide})
    outputs = outputs_of(task, model)
    novel = model.novel_logits(outputs.first, OLD_CLASSES)
    expected = slow_losses.self_training(model.joint_logits(outputs.first), novel, OLD_CLASSES)
    assert value(terms.SELF_TRAINING, outputs) == pytest.approx(expected / divisor, rel=1e-4)


def test_self_training_weight_ramps_up() -> None:
    settings = quick("paper", {"self_training.weight": 2.0, "self_training.ramp": 0.4})
    assert terms.SELF_TRAINING.weight(settings, 0.0) == pytest.approx(2 * math.exp(-5))
    assert terms.SELF_TRAINING.weight(settings, 0.2) == pytest.approx(2 * math.exp(-5 * 0.5**2))
    assert terms.SELF_TRAINING.weight(settings, 0.4) == terms.SELF_TRAINING.weight(settings, 1.0) == 2.0


@pytest.mark.parametrize("mining", ["hybrid", "frozen"])
@pytest.mark.parametrize("other_view", ["first", "second"])
@pytest.mark.parametrize("divide_by", ["novel", "all", "none"])
def test_triplet_follows_its_settings(mining: str, other_view: str, divide_by: str) -> None:
    changes = {"triplet.mining": mining, "triplet.other_view": other_view, "triplet.divide_by": divide_by}
    task, model = stage({**changes, "triplet.margin": 0.01})
    outputs = outputs_of(task, model)
    features = {"hybrid": outputs.first, "frozen": outputs.frozen}[mining]
    first, second = (model.novel_logits(view, OLD_CLASSES) for view in (outputs.first, outputs.second))
    others = {"first": first, "second": second}[other_view]
    divisor = {"novel": 2, "all": OLD_CLASSES + 2, "none": 1}[divide_by]
    expected = slow_losses.triplet(first, others, features, 0.01, divisor)
    assert value(terms.TRIPLET, outputs) == pytest.approx(expected, rel=1e-4)


def test_each_choice_of_the_triplet_makes_a_difference() -> None:
    changes = [("mining", "frozen"), ("other_view", "first"), ("divide_by", "all"), ("divide_by", "novel")]
    choices = [{}, *({f"triplet.{part}": choice} for part, choice in changes)]
    values = [value(terms.TRIPLET, outputs_of(*stage(choice))) for choice in choices]
    assert len(set(values)) == len(values)


def test_regularization_reads_the_first_view() -> None:
    task, model = stage()
    outputs = outputs_of(task, model)
    expected = slow_losses.regularization(model.novel_logits(outputs.first, OLD_CLASSES))
    assert value(terms.REGULARIZATION, outputs) == pytest.approx(expected, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_replay_draws_from_the_statistics_with_the_key_of_the_batch(kind: str) -> None:
    task, model = stage({"replay.per_class": 5, "replay.scale": 1.3, "replay.statistics": kind})
    outputs = outputs_of(task, model)
    noise = Draws(outputs.batch.key + 1, torch.arange(5 * OLD_CLASSES)).normal(64)
    samples, labels = task.statistics.features_at(noise.view(OLD_CLASSES, 5, 64), 1.3)
    assert labels.tolist() == [label for label in range(OLD_CLASSES) for _ in range(5)]
    expected = slow_losses.cross_entropy(model.joint_logits(samples), labels.tolist())
    assert value(terms.REPLAY, outputs) == pytest.approx(expected, rel=1e-4)
    other = StageOutputs(task, model, replace(outputs.batch, key=outputs.batch.key + 2))
    assert value(terms.REPLAY, other) != pytest.approx(expected, rel=1e-4)


def test_assignment_may_predict_the_first_view_alone() -> None:
    task, model = stage({"assignment.targets": "first"}, "inlay")
    outputs = outputs_of(task, model)
    expected = assignment_of_first(*outputs.novel, 0.1, 0.05)
    assert value(terms.ASSIGNMENT, outputs) == pytest.approx(expected.item(), rel=1e-5)


def test_assignment_predicts_each_view_from_the_other() -> None:
    task, model = stage({"assignment.temperature": 0.3, "assignment.epsilon": 0.2}, "inlay")
    outputs = outputs_of(task, model)
    first, second = outputs.novel
    total = 0.0
    for scores, target in ((second, sinkhorn(first, 0.2)), (first, sinkhorn(second, 0.2))):
        for row, wanted in zip(scores.tolist(), target.tolist(), strict=True):
            predicted = slow_losses.softmax([score / 0.3 for score in row])
            total -= sum(q * math.log(p) for q, p in zip(wanted, predicted, strict=True)) / len(scores) / 2
    assert value(terms.ASSIGNMENT, outputs) == pytest.approx(total, rel=1e-4)


def test_information_is_that_of_the_two_tempered_softmaxes() -> None:
    task, model = stage({"assignment.information": 1.0, "assignment.temperature": 0.3}, "inlay")
    outputs = outputs_of(task, model)
    first, second = (
        [slow_losses.softmax([score / 0.3 for score in row]) for row in view.tolist()] for view in outputs.novel
    )
    count, classes = len(first), range(2)
    one_way = [[sum(first[n][i] * second[n][j] for n in range(count)) / count for j in classes] for i in classes]
    joint = [[(one_way[i][j] + one_way[j][i]) / 2 for j in classes] for i in classes]
    side = [sum(joint[i]) for i in classes]
    mutual = sum(joint[i][j] * math.log(joint[i][j] / side[i] / side[j]) for i in classes for j in classes)
    assert value(terms.INFORMATION, outputs) == pytest.approx(-mutual, rel=1e-3, abs=1e-6)


CLASSIFIER_TERMS = (terms.SELF_TRAINING, terms.TRIPLET, terms.REGULARIZATION, terms.ASSIGNMENT, terms.INFORMATION)


def backbone_gradients(term: Term, detach: bool) -> list[Tensor | None]:
    task, model = stage({"classifier.detach": detach})
    torch.autograd.backward([term.loss(outputs_of(task, model))])
    return [parameter.grad for parameter in branches.branch_parameters(model.trunk)]


@pytest.mark.parametrize("term", CLASSIFIER_TERMS, ids=lambda term: str(term.name))
def test_detach_keeps_classifier_losses_off_the_backbone(term: Term) -> None:
    assert all(gradient is None for gradient in backbone_gradients(term, detach=True))
    without = backbone_gradients(term, detach=False)
    assert all(gradient is not None and bool(gradient.any()) for gradient in without)


@pytest.mark.parametrize("term", [terms.CONTRASTIVE, terms.DISTILLATION], ids=lambda term: str(term.name))
def test_representation_losses_always_reach_the_backbone(term: Term) -> None:
    gradients = backbone_gradients(term, detach=True)
    assert all(gradient is not None and bool(gradient.any()) for gradient in gradients)


@pytest.mark.parametrize("detach", [True, False])
def test_replay_reaches_the_joint_head_alone(detach: bool) -> None:
    assert all(gradient is None for gradient in backbone_gradients(terms.REPLAY, detach))


OF_PRESETS = [(name, term) for name in ("inlay", "paper", "frost", "ncl", "dtc", "restune") for term in terms_of(name)]


@pytest.mark.parametrize(("name", "term"), OF_PRESETS, ids=lambda value: getattr(value, "name", value))
def test_no_term_reaches_the_frozen_network(name: str, term: Term) -> None:
    task, model = stage({"triplet.mining": "frozen"}, name)
    task.network.requires_grad_(True)
    torch.autograd.backward([term.loss(outputs_of(task, model))])
    assert all(parameter.grad is None for parameter in task.network.parameters())


def test_names_are_distinct() -> None:
    assert len({term.name for term in TERMS}) == len(TERMS)


def test_all_terms_of_all_methods_are_listed() -> None:
    assert {term.name for found in METHODS.values() for term in found.terms} == {term.name for term in TERMS}
    assert {term.name for _, term in OF_PRESETS} == {term.name for term in TERMS}
