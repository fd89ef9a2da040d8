from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from inlay.discovery.kmeans import kmeans
from inlay.discovery.whitening import mean_within_class_covariance, whitening
from inlay.engine.randomness import generator
from inlay.errors import InlayError
from inlay.heads import CosineHead, MappedCosineHead
from inlay.methods import METHODS, method
from inlay.methods.method import linear_novel_head, prototypes_from_kmeans
from inlay.methods.model import StageOutputs
from inlay.methods.term import Term
from inlay.methods.terms import TERMS
from inlay.settings import preset, preset_names
from tiny_stage import outputs_of, quick, tiny_model, tiny_task

WEIGHTS = {
    "contrastive": "contrastive.weight",
    "distillation": "distillation.weight",
    "self-training": "self_training.weight",
    "triplet": "triplet.weight",
    "regularization": "regularization.weight",
    "replay": "replay.weight",
    "assignment": "assignment.weight",
    "information": "assignment.information",
    "pairs": "pairs.weight",
    "consistency": "consistency.weight",
    "neighbourhood": "neighbourhood.weight",
    "clustering": "clustering.weight",
    "ranking": "ranking.weight",
    "softened distillation": "softened.weight",
}
NAMES = ["inlay", "adm", "frost", "autonovel", "ncl", "dtc", "restune", "kmeans"]


def refuse(outputs: StageOutputs) -> Tensor:
    raise AssertionError("this term must not be computed")


@pytest.mark.parametrize(
    ("name", "method_name"),
    [
        ("paper", "adm"),
        ("frost+aff", "frost"),
        ("frost+amm", "frost"),
        *((name, name) for name in NAMES if name != "adm"),
    ],
)
def test_the_presets_choose_their_method_and_pass_its_check(name: str, method_name: str) -> None:
    assert preset(name).method == method_name
    method(method_name).check(preset(name))


def test_every_term_has_a_weight_in_the_settings() -> None:
    assert WEIGHTS.keys() == {term.name for term in TERMS}
    for term in TERMS:
        settings = quick(changes={WEIGHTS[term.name]: 3.5})
        assert term.weight(settings, 1.0) == 3.5


@pytest.mark.parametrize("name", ["contrastive", "distillation", "self-training", "triplet", "replay"])
def test_a_term_without_weight_is_not_computed(name: str) -> None:
    task = tiny_task(quick("paper", {WEIGHTS[name]: 0.0}))
    adm = method("adm")
    terms = tuple(replace(term, loss=refuse) if term.name == name else term for term in adm.terms)
    changed = replace(adm, terms=terms)
    losses = changed.losses(outputs_of(task, tiny_model(task)))
    assert losses.keys() == {term.name for term in adm.terms} - {name}
    assert changed.weights(task.settings, 0.5).keys() == losses.keys()


def test_a_method_may_have_terms_of_its_own_alone() -> None:
    own = Term("own", lambda settings, progress: 0.1 * progress, refuse)
    settings = quick("paper", {path: 0.0 for path in WEIGHTS.values()})
    replace(method("adm"), terms=(own,)).check(settings)
    with pytest.raises(InlayError, match="No loss of the method 'adm' has a weight"):
        method("adm").check(settings)


def test_losses_come_without_their_weights() -> None:
    settings = quick("paper", {"contrastive.weight": 2.0, "distillation.weight": 0.5})
    task = tiny_task(settings)
    outputs = outputs_of(task, tiny_model(task))
    losses, weights = method("adm").losses(outputs), method("adm").weights(settings, 1.0)
    assert losses.keys() == weights.keys() == {term.name for term in method("adm").terms}
    for term in method("adm").terms:
        assert losses[term.name].item() == pytest.approx(term.loss(outputs).item())
        assert weights[term.name] == term.weight(settings, 1.0)
    assert (weights["contrastive"], weights["distillation"]) == (2.0, 0.5)


@pytest.mark.parametrize("name", [name for name in preset_names() if name != "kmeans"])
def test_weights_are_always_of_the_same_losses_in_the_same_order(name: str) -> None:
    settings = quick(name)
    task = tiny_task(settings)
    names = list(method(settings.method).losses(outputs_of(task, tiny_model(task))))
    for progress in (0.0, 1e-9, 0.3, 1.0):
        assert list(method(settings.method).weights(settings, progress)) == names


def test_self_training_is_ramped_by_the_progress() -> None:
    settings = quick("paper", {"self_training.weight": 1.0})
    early, late = (method("adm").weights(settings, progress)["self-training"] for progress in (0.0, 1.0))
    assert late == 1.0 and early == pytest.approx(0.006737947, rel=1e-4)


@pytest.mark.parametrize(
    ("preset_name", "term", "has"),
    [
        ("paper", "assignment", ".*distillation"),
        ("paper", "information", ".*distillation"),
        ("inlay", "triplet", ".*distillation"),
        ("autonovel", "neighbourhood", r"pairs, consistency\.$"),
        ("kmeans", "clustering", r"none\.$"),
    ],
)
def test_check_refuses_a_weight_that_the_method_would_not_obey(preset_name: str, term: str, has: str) -> None:
    settings = quick(preset_name, {WEIGHTS[term]: 1.0})
    with pytest.raises(InlayError, match=rf"has no {term} term, so set its weight to 0; it has: {has}"):
        method(settings.method).check(settings)


@pytest.mark.parametrize("name", ["inlay", "paper", "frost", "ncl", "dtc", "restune"])
def test_check_refuses_settings_without_any_weight(name: str) -> None:
    settings = quick(name, dict.fromkeys(WEIGHTS.values(), 0.0))
    with pytest.raises(InlayError, match="set at least one of them"):
        method(settings.method).check(settings)


@pytest.mark.parametrize("name", ["autonovel", "ncl", "dtc", "restune"])
def test_check_refuses_to_do_without_a_novel_head_where_there_is_no_joint_one(name: str) -> None:
    settings = quick(name, {"classifier.heads": "one"})
    with pytest.raises(InlayError, match=f"^The method '{name}' has no joint head, so set classifier.heads=two.$"):
        method(name).check(settings)


def test_the_linear_novel_head_is_random_and_repeatable() -> None:
    task = tiny_task(quick())
    head, again = linear_novel_head(task), linear_novel_head(task)
    other = linear_novel_head(replace(task, seed=task.seed + 1))
    assert isinstance(head, nn.Linear) and isinstance(again, nn.Linear) and isinstance(other, nn.Linear)
    assert (head.in_features, head.out_features) == (64, 2)
    assert torch.equal(head.weight, again.weight) and not torch.equal(head.weight, other.weight)


def test_prototypes_start_at_the_centroids_of_the_frozen_features() -> None:
    task = tiny_task(quick(changes={"assignment.metric": "plain"}))
    head = prototypes_from_kmeans(task)
    assert isinstance(head, CosineHead) and head.prototypes.requires_grad
    clusters = kmeans(task.frozen_features, 2, generator(task.seed, "k-means"), spherical=True)
    torch.testing.assert_close(head.prototypes.detach(), clusters.centroids)
    assert torch.equal(head(task.frozen_features).argmax(dim=1), clusters.labels)


def test_prototypes_in_the_metric_of_known_classes_start_at_centroids_there() -> None:
    task = tiny_task(quick(changes={"assignment.metric": "known", "assignment.directions": 4}))
    head = prototypes_from_kmeans(task)
    assert isinstance(head, MappedCosineHead) and head.matrix.shape == (64, 8)
    within = mean_within_class_covariance(task.statistics)
    centre, matrix = whitening(within, task.frozen_features, 8)
    moved = (task.frozen_features - centre) @ matrix
    clusters = kmeans(moved, 2, generator(task.seed, "k-means"), spherical=True)
    assert torch.equal(head(task.frozen_features).argmax(dim=1), clusters.labels)


def test_methods_are_found_by_name() -> None:
    assert list(METHODS) == NAMES
    for name, found in METHODS.items():
        assert found.name == name and method(name) is found


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(InlayError, match=f"^There is no method 'uno'; choose one of: {', '.join(NAMES)}.$"):
        method("uno")


@pytest.mark.parametrize(("setting", "value"), [("heads", "one"), ("refit", True), ("drift", True)])
def test_what_needs_a_joint_head_is_refused_without_one(setting: str, value: object) -> None:
    settings = preset("dtc")
    method("dtc").check(settings)
    with pytest.raises(InlayError, match=f"no joint head, so set classifier.{setting}="):
        method("dtc").check(settings.changed({f"classifier.{setting}": value}))
