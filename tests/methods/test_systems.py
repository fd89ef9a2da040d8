"""Every system of the table, from a fixed batch to a whole stage."""

import functools
import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from inlay import branches
from inlay.backbones.twin import TwinNetwork
from inlay.engine.loop import Loop
from inlay.knowledge import Knowledge
from inlay.methods import StageOutcome, method
from inlay.pipeline import Workshop, learn_base, learn_stage
from inlay.settings import preset, preset_names
from tiny_digits import digits
from tiny_stage import SEED, quick, run_fixed, tiny_task

BASE, NEW = ["0", "1", "2"], ["3", "4"]
TRAINED = [name for name in preset_names() if method(preset(name).method).terms]
MERGED = [name for name in TRAINED if preset(name).branch.gate == "amm"]


@dataclass(frozen=True)
class OpenWorkshop(Workshop):
    """Remembers the loops and outcomes of the stages."""

    loops: list[Loop] = field(default_factory=list)
    outcomes: list[StageOutcome] = field(default_factory=list)

    def made(self, loop: Loop) -> None:
        self.loops.append(loop)

    def settled(self, outcome: StageOutcome) -> None:
        self.outcomes.append(outcome)


@functools.cache
def base(statistics: str) -> Knowledge:
    settings = quick("paper", {"replay.statistics": statistics})
    return learn_base(digits(BASE), "resnet8", settings, SEED, Workshop())


@functools.cache
def stage(name: str) -> tuple[Knowledge, Knowledge, OpenWorkshop]:
    """What was known before and after a short stage, and the workshop that saw it."""
    settings, workshop = quick(name), OpenWorkshop()
    before = base(settings.replay.statistics)
    return before, learn_stage(before, digits(NEW).without_labels(), 2, settings, workshop), workshop


def test_all_systems_but_k_means_are_trained() -> None:
    assert set(preset_names()) - set(TRAINED) == {"kmeans"}
    assert {"inlay", "paper", "frost+amm"} == set(MERGED)


@pytest.mark.parametrize("name", TRAINED)
def test_the_loss_of_a_fixed_batch_falls(name: str) -> None:
    settings = quick(name, {"training.epochs": 21, "training.batch": 48, "training.learning_rate": 0.02})
    _, loop = run_fixed(tiny_task(settings))
    assert len(loop.totals) == 21 and all(math.isfinite(total) for total in loop.totals)
    assert loop.totals[20] < loop.totals[0]


@pytest.mark.parametrize("name", preset_names())
def test_a_stage_ends_with_finite_scores_of_all_classes(name: str) -> None:
    _, knowledge, workshop = stage(name)
    scores = knowledge.logits(digits([*BASE, *NEW], 50, 60))
    assert scores.shape == (50, 5) and bool(torch.isfinite(scores).all())
    assert set(knowledge.record.clusters) <= {0, 1} and len(knowledge.record.clusters) == 80
    assert len(knowledge.statistics) == len(knowledge.registry) == 5
    assert [loop.step for loop in workshop.loops] == ([] if name == "kmeans" else [8])
    assert [outcome.network for outcome in workshop.outcomes] == [knowledge.network]


@pytest.mark.parametrize("name", preset_names())
def test_the_assignments_are_those_of_the_head_that_the_outcome_holds(name: str) -> None:
    _, knowledge, workshop = stage(name)
    novel = workshop.outcomes[0].novel_head
    assert novel is not None
    with torch.no_grad():
        scores = novel(knowledge.features(digits(NEW)))
    assert scores.argmax(dim=1).tolist() == list(knowledge.record.clusters)


@pytest.mark.parametrize("name", preset_names())
def test_branches_are_merged_where_the_gate_allows_it(name: str) -> None:
    before, knowledge, workshop = stage(name)
    report = workshop.outcomes[0].merge
    if name not in MERGED:
        assert report is None and knowledge.record.merge is None
        assert branches.is_hybrid(knowledge.network) is (name == "frost+aff")
        assert isinstance(knowledge.network, TwinNetwork) is (name == "restune")
        return
    assert report is not None and report.relative_diff_float64 is not None and report.relative_diff is not None
    assert report.relative_diff_float64 < 1e-10 and report.relative_diff < 1e-4
    folded = branches.fold(before.network, before.form.example())
    assert branches.count_parameters(knowledge.network) == branches.count_parameters(folded)
    shapes = [{key: t.shape for key, t in network.state_dict().items()} for network in (knowledge.network, folded)]
    assert shapes[0] == shapes[1]


def moved_parameters(before: nn.Module, after: nn.Module) -> set[str]:
    start = dict(before.named_parameters())
    return {key for key, value in after.named_parameters() if not torch.equal(value, start[key])}


@pytest.mark.parametrize("name", ["frost", "autonovel", "ncl"])
def test_the_stem_and_the_first_group_stay_to_the_bit_and_the_others_move(name: str) -> None:
    before, knowledge, _ = stage(name)
    names = {key for key, _ in before.network.named_parameters()}
    assert {key.split(".")[0] for key in names} == {"conv", "norm", "layer1", "layer2", "layer3"}
    later = {key for key in names if key.startswith(("layer2.", "layer3."))}
    assert moved_parameters(before.network, knowledge.network) == later


def test_dtc_moves_the_whole_network() -> None:
    before, knowledge, _ = stage("dtc")
    assert moved_parameters(before.network, knowledge.network) == {key for key, _ in before.network.named_parameters()}


def test_k_means_leaves_the_network_as_it_was() -> None:
    before, knowledge, _ = stage("kmeans")
    images = before.form.prepare(digits(BASE, 50, 60).images)
    with torch.no_grad():
        torch.testing.assert_close(knowledge.network(images), before.network(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", preset_names())
def test_what_is_known_survives_its_files(name: str) -> None:
    _, knowledge, _ = stage(name)
    tensors, facts = knowledge.to_files()
    again = Knowledge.from_files(tensors, facts, torch.device("cpu"))
    images = digits([*BASE, *NEW], 50, 52)
    assert torch.equal(again.logits(images), knowledge.logits(images))
