import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from increment_cases import course, quick, standings
from inlay.increments.increment import Increment, System
from inlay.increments.outputs import features_and_maps
from inlay.increments.scores import score_stage
from inlay.increments.systems import afc, catalogue
from inlay.increments.work import IncrementWork
from proxy_stages import GROUPS, NEW, OLD, Watch, batch_of, exact_stage, moved

NAMES = [f"importance.{group}" for group in GROUPS]


def _moved_work(stage: Increment) -> IncrementWork:
    watch = Watch(train=False)
    afc.PUBLISHED.learn(stage, watch)
    work = watch.works["the losses"]
    moved(work.classifier.network, 2)
    work.eval()
    return work


def _unit_square(channel: Tensor) -> list[float]:
    squares = [value * value for value in channel.flatten().tolist()]
    length = math.sqrt(sum(square * square for square in squares))
    return [square / max(length, 1e-12) for square in squares]


def test_discrepancy_of_a_later_stage_against_loops() -> None:
    stage = exact_stage(afc.PUBLISHED)
    work, batch = _moved_work(stage), batch_of(stage)
    inputs = stage.form.prepare(batch.images)
    with torch.no_grad():
        _, new_maps = features_and_maps(work.classifier.network, inputs, GROUPS)
        _, old_maps = features_and_maps(stage.start.network, inputs, GROUPS)
        found = work(batch)
    layers = []
    for name, new, old in zip(NAMES, new_maps, old_maps, strict=True):
        costs = [
            float(stage.extras[name][c]) * math.dist(_unit_square(new[b, c]), _unit_square(old[b, c]))
            for b in range(new.shape[0])
            for c in range(new.shape[1])
        ]
        layers.append(sum(costs) / len(costs))
    assert list(found) == ["nca", "discrepancy"]
    assert found["discrepancy"].item() == pytest.approx(sum(layers) / len(layers), rel=1e-9)
    assert work.weights(0.5) == pytest.approx({"nca": 1.0, "discrepancy": 4 * math.sqrt((OLD + NEW) / NEW)})


def test_what_was_measured_after_the_stage_before_decides() -> None:
    stage = exact_stage(afc.PUBLISHED)
    zero = replace(stage, extras={name: torch.zeros_like(values) for name, values in stage.extras.items()})
    batch = batch_of(stage)
    with torch.no_grad():
        assert _moved_work(zero)(batch)["discrepancy"] == 0
        assert _moved_work(stage)(batch)["discrepancy"] > 0


def test_importance_is_measured_anew_after_each_stage_with_the_merged_network() -> None:
    short = {"base__epochs": 1, "stage__epochs": 1, "tuning__epochs": 1, "branch__gate": "amm"}
    images = course(cut=(3, 2), images=12)
    found = standings(quick(afc.FAIR, **short), images)
    for standing in found:
        assert list(standing.extras) == NAMES
        assert [values.mean().item() for values in standing.extras.values()] == pytest.approx([1, 1, 1], rel=1e-5)
        assert not any(values.requires_grad for values in standing.extras.values())
    assert not torch.allclose(found[0].extras[NAMES[0]], found[1].extras[NAMES[0]])


def test_four_groups_of_its_own_network_are_measured() -> None:
    own = {"backbone": afc.PUBLISHED.recipe.backbone, "view": afc.PUBLISHED.recipe.view, "base__epochs": 1}
    (standing,) = standings(quick(afc.PUBLISHED, **own), course(cut=(3,), images=12))
    assert [tuple(values.shape) for values in standing.extras.values()] == [(16,), (32,), (64,), (64,)]


@pytest.mark.parametrize("table", ["A", "B"])
def test_the_base_stage_is_that_of_podnet(table: catalogue.Table) -> None:
    systems = [catalogue.system(name, table) for name in ("podnet", "afc")]
    assert systems[0].base == systems[1].base
    assert systems[0].recipe == systems[1].recipe
    states = [
        standings(quick(system, base__epochs=1), course(cut=(3,), images=12))[0].classifier.state_dict()
        for system in systems
    ]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize(
    ("system", "gate", "follows"),
    [(afc.PUBLISHED, "full", True), (afc.FAIR, "full", False), (afc.PUBLISHED, "amm", False)],
)
def test_batch_norms_follow_the_images_of_a_later_stage_as_published(system: System, gate: str, follows: bool) -> None:
    stage = exact_stage(system, branch__gate=gate)
    assert stage.before is not None
    learned = system.learn(stage, Watch(train=False)).classifier.network
    before = {name: value for name, value in stage.before.network.named_buffers() if "running" in name}
    after = {name: value for name, value in learned.named_buffers() if "running" in name}
    assert after.keys() == (before.keys() if gate == "full" else set())
    assert all(torch.equal(value, before[name]) != follows for name, value in after.items())
    assert not any(module.training for module in learned.modules())


def test_old_and_new_digits_are_told_apart() -> None:
    longer = {"base__epochs": 8, "stage__epochs": 6, "tuning__batch": 10, "memory__per_class": 10}
    images = course(cut=(3, 2), images=30)
    scores = score_stage(images, standings(quick(afc.FAIR, **longer), images)[-1])
    # By chance it would be a fifth; until the head is tuned, hardly any old digit is recognised.
    assert scores.cnn > 0.5
    assert min(scores.groups) > 0.4
