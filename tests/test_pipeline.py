import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from inlay import branches
from inlay.decisions import Decision, Merge, Reject, Rename, Split, apply
from inlay.engine.loop import Loop
from inlay.errors import InlayError, TrainingDivergedError
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


def same_heads(first: Knowledge, second: Knowledge) -> bool:
    weights, others = first.head.state_dict(), second.head.state_dict()
    return weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)


def folded(knowledge: Knowledge) -> nn.Module:
    return branches.fold(knowledge.network, inputs(knowledge))


def norms(network: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def next_stage(knowledge: Knowledge, names: list[str], workshop: Workshop, **changes: object) -> Knowledge:
    settings = quick(changes={f"branch.{name}": value for name, value in changes.items()})
    return learn_stage(knowledge, digits(names).without_labels(), len(names), settings, workshop)


def test_the_network_does_not_grow(history: History) -> None:
    base, *later = history.knowledge
    networks = [folded(base), *(k.network for k in later)]
    shapes = [{n: t.shape for n, t in network.state_dict().items()} for network in networks]
    counts = [branches.count_parameters(network) for network in networks]
    assert shapes[1:] == shapes[:-1] and len(set(counts)) == 1
    assert counts[0] < branches.count_parameters(base.network)
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
    first = branches.gammas(folded(history.knowledge[0]))
    expected = {name: gamma.tolist() for name, gamma in first.items()}
    for knowledge, hybrid in zip(history.knowledge[1:], history.hybrids, strict=True):
        for name, unit in branches.hybrid_units(hybrid).items():
            assert unit.norm is not None
            novel = unit.norm.weight.tolist()
            expected[name] = [g + n / (1 + math.exp(g)) for g, n in zip(expected[name], novel, strict=True)]
        for name, gamma in branches.gammas(knowledge.network).items():
            torch.testing.assert_close(gamma, torch.tensor(expected[name]), rtol=1e-5, atol=1e-6)
            assert not torch.equal(gamma, first[name])


def test_the_base_stage_keeps_the_network_as_it_was_trained() -> None:
    workshop = OpenWorkshop()
    knowledge = learn_base(digits(BASE), "resnet8", quick(), SEED, workshop)
    trained = workshop.modules[0]["network"].state_dict()
    kept = knowledge.network.state_dict()
    assert kept.keys() == trained.keys() and all(torch.equal(kept[name], trained[name]) for name in kept)
    assert len(norms(knowledge.network)) == 7 and not branches.folded_layers(knowledge.network)
    assert not any(module.training for module in knowledge.network.modules())
    assert not any(parameter.requires_grad for parameter in knowledge.network.parameters())


def test_folding_the_base_network_keeps_its_scores(history: History) -> None:
    base = history.knowledge[0]
    images = inputs(base).double()
    network, head = copy.deepcopy(base.network).double(), copy.deepcopy(base.head).double()
    with torch.no_grad():
        expected, actual = head(network(images)), head(branches.fold(network, images)(images))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_the_first_gammas_are_those_of_the_trained_batch_norms(history: History) -> None:
    units = branches.hybrid_units(history.hybrids[0]).values()
    for norm, unit in zip(norms(history.knowledge[0].network), units, strict=True):
        assert torch.equal(norm.weight, unit.gamma)


@pytest.mark.parametrize("rate", [1e20, 1e38])
def test_a_base_network_whose_last_step_diverged_is_refused(rate: float) -> None:
    # The loss of the only step is still finite; the features after it are not.
    wild = {"base.training.epochs": 1, "base.training.batch": 120, "base.training.learning_rate": rate}
    with pytest.raises(TrainingDivergedError, match=r"not finite; .* base\.training\.learning_rate=1e\+"):
        learn_base(digits(BASE), "resnet8", quick(changes=wild), SEED, Workshop())


@pytest.mark.parametrize("gate", ["amm", "full"])
def test_a_stage_leaves_what_was_known_as_it_was(history: History, gate: str) -> None:
    base = history.knowledge[0]
    before, facts = copy.deepcopy(base.to_files())
    later = next_stage(base, STAGES[0], Workshop(), gate=gate)
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
    start = history.knowledge[0].network if gate == "full" else folded(history.knowledge[0])
    images = inputs(knowledge)
    with torch.no_grad():
        moved = not torch.equal(knowledge.network(images), start(images))
    assert moved is (gate != "frozen")


def test_a_full_stage_trains_what_is_included_and_moves_all_running_statistics(history: History) -> None:
    base = history.knowledge[0].network
    trained = next_stage(history.knowledge[0], STAGES[0], Workshop(), gate="full", include=("layer3*",)).network
    assert len(norms(trained)) == 7
    before = dict(base.named_parameters())
    moved = {name for name, value in trained.named_parameters() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if name.startswith("layer3.")}
    for old, new in zip(norms(base), norms(trained), strict=True):
        assert old.running_mean is not None and new.running_mean is not None
        assert old.running_var is not None and new.running_var is not None
        assert not torch.equal(old.running_mean, new.running_mean)
        assert not torch.equal(old.running_var, new.running_var)


def test_branches_after_a_full_stage_are_gated_by_the_batch_norms_it_trained(history: History) -> None:
    workshop = OpenWorkshop()
    full = next_stage(history.knowledge[0], STAGES[0], Workshop(), gate="full")
    merged = next_stage(full, STAGES[1], workshop, gate="amm")
    units = branches.hybrid_units(workshop.modules[0]["trunk"]).values()
    first = norms(history.knowledge[0].network)
    for norm, old, unit in zip(norms(full.network), first, units, strict=True):
        assert torch.equal(norm.weight, unit.gamma) and not torch.equal(old.weight, unit.gamma)
    assert merged.record.merge is not None and not norms(merged.network)
    assert merged.logits(digits(BASE, 50, 52)).shape == (6, 7)


def test_a_full_stage_after_one_with_branches_trains_the_merged_network(history: History) -> None:
    merged = history.knowledge[1]
    full = next_stage(merged, STAGES[1], Workshop(), gate="full")
    before = merged.network.state_dict()
    moved = {name for name, value in full.network.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name, _ in merged.network.named_parameters()}
    assert full.record.merge is None and full.logits(digits(BASE, 50, 52)).shape == (6, 7)


def test_a_base_that_is_folded_already_goes_on_to_the_same_bits(history: History) -> None:
    base = history.knowledge[0]
    after = [
        next_stage(knowledge, STAGES[0], Workshop(), gate="amm").to_files()[0]
        for knowledge in (base, replace(base, network=folded(base)))
    ]
    assert after[0].keys() == after[1].keys()
    assert all(torch.equal(tensor, after[1][name]) for name, tensor in after[0].items())


def test_a_module_of_the_users_is_copied() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    before = copy.deepcopy(module.state_dict())
    knowledge = learn_base(digits(BASE), module, quick(), SEED, Workshop())
    assert knowledge.backbone is None and knowledge.head.in_features == 6
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize("name", ["inlay", "paper"])
def test_a_retired_class_stays_closed_after_the_next_stage(name: str) -> None:
    settings = quick(name)
    first = run(settings, 1).knowledge[-1]
    rejected = apply(first, Reject(3))
    second = learn_stage(rejected, digits(STAGES[1]).without_labels(), 2, settings, Workshop())
    assert isinstance(second.head, nn.Linear)
    others = [index for index in range(len(second.registry)) if index != 3]
    assert second.head.bias[3] < second.head.bias[others].min() - 500
    assert 3 not in second.logits(digits([*BASE, *STAGES[0], *STAGES[1]])).argmax(dim=1).tolist()


def test_features_that_are_known_are_not_computed_again(history: History) -> None:
    known, images = history.knowledge[0], digits(STAGES[0]).without_labels()
    settings = quick(changes={"branch.gate": "frozen", "training.epochs": 0})
    features = known.features(images)
    anew, given, wrong = (
        learn_stage(known, images, 2, settings, Workshop(), features=rows)
        for rows in (None, features, features.flip(0))
    )
    assert given.record.clusters == anew.record.clusters
    torch.testing.assert_close(given.statistics.mean, anew.statistics.mean)
    assert wrong.record.clusters != anew.record.clusters


@pytest.mark.parametrize("decision", [Merge((4,), 0), Reject(4), Split(4, (0, 0, 1, 1)), Rename(4, "four")])
def test_training_from_before_a_decision_is_taken_up_only_if_nothing_was_made_of_it(
    history: History, decision: Decision, tmp_path: Path
) -> None:
    before, images = history.knowledge[1], digits(STAGES[1]).without_labels()
    after = apply(before, decision, lambda id: before.features(digits(STAGES[0], 0, 2)))
    kept = Workshop(checkpoint=tmp_path / "state")
    learn_stage(before, images, 2, quick(), kept)
    if isinstance(decision, Rename):
        assert same_heads(learn_stage(after, images, 2, quick(), kept), history.knowledge[2])
        return
    with pytest.raises(InlayError, match=r"unfinished work .* from before a review of classes; .* --restart"):
        learn_stage(after, images, 2, quick(), kept)
    (tmp_path / "state").unlink()
    # What was decided before the stage began does not keep it from going on.
    assert same_heads(*(learn_stage(after, images, 2, quick(), kept) for _ in range(2)))
