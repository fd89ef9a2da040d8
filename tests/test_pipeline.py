import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn

from inlay import branches
from inlay.engine.loop import Loop
from inlay.knowledge import Knowledge
from inlay.pipeline import Workshop, learn_base, learn_stage
from inlay.settings import Settings
from tiny_digits import digits
from tiny_stage import quick

BASE = ["0", "1", "2"]
STAGES = (["3", "4"], ["5", "6"], ["7", "8"])
SEED = 5


@dataclass(frozen=True)
class OpenWorkshop(Workshop):
    """Remembers the trained modules of each stage."""

    modules: list[Mapping[str, nn.Module]] = field(default_factory=list)

    def made(self, loop: Loop) -> None:
        self.modules.append(dict(loop.work.named_children()))


@dataclass(frozen=True)
class History:
    knowledge: list[Knowledge]
    hybrids: list[nn.Module]


def run(settings: Settings, stages: int, seed: int = SEED) -> History:
    workshop = OpenWorkshop()
    known = [learn_base(digits(BASE), "resnet8", settings, seed, workshop)]
    for names in STAGES[:stages]:
        known.append(learn_stage(known[-1], digits(names).without_labels(), len(names), settings, workshop))
    return History(known, [modules["trunk"] for modules in workshop.modules[1:]])


@pytest.fixture(scope="module")
def history() -> History:
    return run(quick(), stages=3)


def inputs(knowledge: Knowledge) -> Tensor:
    return knowledge.form.prepare(digits([*BASE, *STAGES[0]], 50, 60).images)


def gammas(network: nn.Module) -> dict[str, Tensor]:
    return {name: module.gamma for name, module in network.named_modules() if isinstance(module, branches.Folded)}


def test_the_network_does_not_grow(history: History) -> None:
    shapes = [{n: t.shape for n, t in k.network.state_dict().items()} for k in history.knowledge]
    counts = [branches.count_parameters(k.network) for k in history.knowledge]
    assert shapes[1:] == shapes[:-1] and len(set(counts)) == 1
    assert [k.head.out_features for k in history.knowledge] == [3, 5, 7, 9]
    for knowledge in history.knowledge[1:]:
        merge = knowledge.record.merge
        assert merge is not None
        assert merge["parameters_before"] == merge["parameters_after"] == counts[0] < merge["parameters_hybrid"]


def test_each_merged_network_gives_the_features_of_its_hybrid(history: History) -> None:
    for before, knowledge, hybrid in zip(history.knowledge[:-1], history.knowledge[1:], history.hybrids, strict=True):
        images = inputs(knowledge)
        with torch.no_grad():
            expected, merged = copy.deepcopy(hybrid).eval()(images), knowledge.network(images)
            moved = (expected - before.network(images)).abs().max().item()
        assert (merged - expected).abs().max().item() < 1e-4 < 1e-3 < moved
        assert knowledge.record.merge is not None and knowledge.record.merge["max_abs_diff"] < 1e-4


def test_gamma_follows_the_rule_over_the_stages(history: History) -> None:
    expected = {name: gamma.tolist() for name, gamma in gammas(history.knowledge[0].network).items()}
    for knowledge, hybrid in zip(history.knowledge[1:], history.hybrids, strict=True):
        for name, unit in branches.hybrid_units(hybrid).items():
            assert unit.norm is not None
            novel = unit.norm.weight.tolist()
            expected[name] = [g + n / (1 + math.exp(g)) for g, n in zip(expected[name], novel, strict=True)]
        for name, gamma in gammas(knowledge.network).items():
            torch.testing.assert_close(gamma, torch.tensor(expected[name]), rtol=1e-5, atol=1e-6)
            assert not torch.equal(gamma, gammas(history.knowledge[0].network)[name])


def test_the_first_gammas_are_those_of_the_trained_batch_norms() -> None:
    workshop = OpenWorkshop()
    knowledge = learn_base(digits(BASE), "resnet8", quick(), SEED, workshop)
    network = workshop.modules[0]["network"]
    scales = [module.weight for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    for scale, gamma in zip(scales, gammas(knowledge.network).values(), strict=True):
        assert torch.equal(scale.detach(), gamma)
    with torch.no_grad():
        images = inputs(knowledge)
        torch.testing.assert_close(knowledge.network(images), network.eval()(images), rtol=1e-4, atol=1e-4)


def test_a_stage_leaves_what_was_known_as_it_was() -> None:
    settings = quick()
    base = learn_base(digits(BASE), "resnet8", settings, SEED, Workshop())
    before, facts = copy.deepcopy(base.to_files())
    later = learn_stage(base, digits(STAGES[0]).without_labels(), 2, settings, Workshop())
    after, facts_after = base.to_files()
    assert facts == facts_after and all(torch.equal(before[name], after[name]) for name in before)
    assert len(later.registry) == 5 and later.registry.names[:3] == base.registry.names


def test_records_tell_what_happened(history: History) -> None:
    base, first = history.knowledge[0].record, history.knowledge[1].record
    assert (base.index, base.kind, base.class_names, base.images) == (0, "base", ("0", "1", "2"), 120)
    assert base.merge is None and base.fingerprints == () and base.clusters == ()
    assert (first.index, first.kind, first.class_names, first.images) == (1, "novel", ("new-1.1", "new-1.2"), 80)
    assert first.fingerprints == digits(STAGES[0]).fingerprints()
    sizes = [entry.size for entry in history.knowledge[1].registry.of_stage(1)]
    assert (
        sizes == [first.clusters.count(0), first.clusters.count(1)]
        and sum(first.clusters.count(i) for i in (0, 1)) == 80
    )
    assert history.knowledge[3].statistics.counts.tolist()[:5] == [40, 40, 40, *sizes]


def test_a_run_is_a_function_of_its_seed(history: History) -> None:
    again, other = run(quick(), stages=1), run(quick(), stages=1, seed=SEED + 1)
    for index in range(2):
        tensors, same, others = (h.knowledge[index].to_files()[0] for h in (history, again, other))
        assert all(torch.equal(tensors[name], same[name]) for name in tensors)
        weights = [name for name in tensors if name.endswith("weight")]
        assert weights and not any(torch.equal(tensors[name], others[name]) for name in weights)


def test_stages_draw_different_kernels(history: History) -> None:
    workshop = OpenWorkshop()
    settings = replace(quick(), training=replace(quick().training, epochs=0))
    known = history.knowledge[0]
    for _ in range(2):
        known = learn_stage(known, digits(STAGES[0]).without_labels(), 2, settings, workshop)
    first, second = (branches.hybrid_units(modules["trunk"])["conv"].novel.weight for modules in workshop.modules)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("gate", ["full", "frozen", "aff"])
def test_what_is_not_merged_has_no_merge_report(history: History, gate: str) -> None:
    settings = quick(changes={"branch.gate": gate, "training.epochs": 1})
    knowledge = learn_stage(history.knowledge[0], digits(STAGES[0]).without_labels(), 2, settings, Workshop())
    assert knowledge.record.merge is None and branches.is_hybrid(knowledge.network) is (gate == "aff")
    images = inputs(knowledge)
    with torch.no_grad():
        moved = not torch.equal(knowledge.network(images), history.knowledge[0].network(images))
    assert moved is (gate != "frozen")


def test_a_module_of_the_users_is_copied() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    before = copy.deepcopy(module.state_dict())
    knowledge = learn_base(digits(BASE), module, quick(), SEED, Workshop())
    assert knowledge.backbone is None and knowledge.head.in_features == 6
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
