"""Algorithm 1 of the paper, walked line by line, and what follows it."""

import copy
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import slow_losses
from inlay import branches
from inlay.data.augment import augmentation
from inlay.data.draws import Draws
from inlay.discovery.drift import drift_map
from inlay.discovery.refit import refit_linear
from inlay.discovery.statistics import class_statistics
from inlay.engine.batch import Batch
from inlay.engine.loop import Companions, Loop
from inlay.engine.randomness import derive_seed, generator
from inlay.engine.work import Work
from inlay.heads import grow
from inlay.methods import Method, StageOutcome, StageTask, adaptive_discovering_and_merging, method
from inlay.methods.model import StageModel, StageOutputs
from inlay.methods.stage import DiscoveryWork
from inlay.settings import Settings
from tiny_digits import News
from tiny_stage import OLD_CLASSES, SEED, images_of, quick, run_fixed, tiny_task


class WalkedLoop(Loop):
    """Remembers every state it passes through."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batches: list[Batch] = []
        self.before: list[dict[str, nn.Module]] = []
        self.losses: list[dict[str, float]] = []
        self.after: dict[str, nn.Module] = {}

    def take_step(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.before.append(copy.deepcopy(dict(self.work.named_children())))
        super().take_step(batch)
        self.losses.append(dict(zip(self._stepper.names, self._stepper.values.tolist(), strict=True)))

    def run(self) -> None:
        super().run()
        self.after = copy.deepcopy(dict(self.work.named_children()))


@dataclass(frozen=True)
class WalkedMethod(Method):
    """Remembers the features of each batch."""

    features: tuple[list[Tensor], ...] = ([], [])

    def losses(self, outputs: StageOutputs) -> dict[str, Tensor]:
        for kept, view in zip(self.features, (outputs.first, outputs.second), strict=True):
            kept.append(view.detach())
        return super().losses(outputs)


@dataclass(frozen=True)
class Walk:
    task: StageTask
    loop: WalkedLoop
    features: tuple[list[Tensor], ...]
    outcome: StageOutcome
    fingerprint_before: str
    told: list[dict[str, float]]

    def views(self, step: int) -> tuple[Tensor, Tensor]:
        """Draw the views of a step once more."""
        indices = self.loop.batches[step].indices
        images, draws = images_of(self.task)[indices], Draws(key_of(step), indices)
        first, second = (augmentation("glyph")(images, draws) for _ in range(2))
        return self.task.normalise(first.double()), self.task.normalise(second.double())


def key_of(step: int) -> int:
    return derive_seed(SEED, "step", step)


def fingerprint(module: nn.Module) -> str:
    digest = hashlib.blake2b()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def walk() -> Walk:
    settings = quick("paper", {"training.batch": 16, "training.epochs": 2, "replay.per_class": 4})
    single = tiny_task(settings)
    task = replace(single, network=single.network.double(), head=single.head.double())
    loops: list[WalkedLoop] = []
    news = News()

    def make_loop(work: Work, companions: Companions | None) -> Loop:
        loops.append(WalkedLoop("the walk", work, settings.training, task.feed, SEED, companions, progress=news))
        return loops[-1]

    walked = WalkedMethod(**vars(method("adm")), features=([], []))
    before = fingerprint(task.network)
    outcome = adaptive_discovering_and_merging(task, walked, make_loop)
    return Walk(task, loops[0], walked.features, outcome, before, news.losses)


def test_line_2_the_hybrid_is_the_base_with_branches_and_starts_at_its_function(walk: Walk) -> None:
    start = walk.loop.before[0]["trunk"]
    units = branches.hybrid_units(start)
    convolutions = {
        name: module for name, module in walk.task.network.named_modules() if isinstance(module, branches.Folded)
    }
    assert units.keys() == convolutions.keys() and len(units) == 7
    for name, unit in units.items():
        assert fingerprint(unit.base) == fingerprint(convolutions[name])
    inputs = walk.task.first_inputs(len(walk.task.feed))
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(start).eval()(inputs), walk.task.network(inputs))


def test_line_3_every_epoch_visits_every_image_once(walk: Walk) -> None:
    visited = torch.cat([batch.indices for batch in walk.loop.batches]).view(2, -1)
    assert visited.shape == (2, len(walk.task.feed))
    for epoch in visited:
        assert sorted(epoch.tolist()) == list(range(len(walk.task.feed)))
    assert not torch.equal(visited[0], visited[1])


def test_line_4_outputs_are_those_of_the_hybrid(walk: Walk) -> None:
    changed = 0.0
    for step in range(len(walk.loop.batches)):
        views = walk.views(step)
        with torch.no_grad():
            expected = walk.loop.before[step]["trunk"](torch.cat(views))
            base = walk.task.network(torch.cat(views))
        actual = torch.cat([walk.features[0][step], walk.features[1][step]])
        assert torch.equal(actual, expected)
        changed = max(changed, (actual - base).abs().max().item())
    assert changed > 1e-3


def expected_losses(walk: Walk, step: int) -> dict[str, float]:
    settings, modules = walk.task.settings, walk.loop.before[step]
    first, second = walk.features[0][step], walk.features[1][step]
    with torch.no_grad():
        views = walk.views(step)
        frozen = walk.task.network(views[0])
        novel, joint = modules["novel_head"](first), modules["joint_head"](first)
        other_novel = modules["novel_head"](second)
        projections = [modules["projector"](view) for view in (first, second)]
        shape = (OLD_CLASSES, settings.replay.per_class, first.shape[1])
        noise = Draws(key_of(step) + 1, torch.arange(shape[0] * shape[1])).normal(shape[2])
        samples, labels = walk.task.statistics.features_at(noise.view(shape), settings.replay.scale)
        replayed = modules["joint_head"](samples.double())
    ramp = math.exp(-5 * (1 - min(step / walk.loop.total, 0.25) / 0.25) ** 2)
    return {
        "contrastive": 1.0 * slow_losses.contrastive(projections[0], projections[1], temperature=0.5),
        "distillation": 10.0 * slow_losses.distillation(first, frozen),
        "self-training": ramp / joint.shape[1] * slow_losses.self_training(joint, novel, OLD_CLASSES),
        "triplet": 1.0 * slow_losses.triplet(novel, other_novel, first, margin=1.0, divisor=1),
        "regularization": 1.0 * slow_losses.regularization(novel),
        "replay": 1.0 * slow_losses.cross_entropy(replayed, labels.tolist()),
    }


def test_line_5_the_loss_is_the_sum_of_every_term_of_the_paper(walk: Walk) -> None:
    for step, losses in enumerate(walk.loop.losses):
        expected = expected_losses(walk, step)
        assert losses == pytest.approx(expected, rel=1e-9, abs=1e-12)
        representation = expected["contrastive"] + expected["distillation"]
        classification = sum(expected[name] for name in ("self-training", "triplet", "regularization", "replay"))
        assert sum(losses.values()) == pytest.approx(representation + classification, rel=1e-9)
    assert walk.told[-1] == pytest.approx({"total": representation + classification, **expected}, rel=1e-9)


def test_line_6_the_step_goes_down_the_gradient_of_the_sum(walk: Walk) -> None:
    work = DiscoveryWork(walk.task, method("adm"), StageModel(**copy.deepcopy(walk.loop.before[0])))  # type: ignore[arg-type]
    losses, weights = work(walk.loop.batches[0]), work.weights(0.0)
    torch.autograd.backward([torch.stack([weights[name] * loss for name, loss in losses.items()]).sum()])
    training = walk.task.settings.training
    assert training.schedule == "step" and not training.nesterov  # so the first step is the plain one
    moved = dict(nn.ModuleDict(walk.loop.before[1]).named_parameters())
    for name, start in nn.ModuleDict(walk.loop.before[0]).named_parameters():
        gradient = work.get_parameter(name).grad
        descent = 0 if gradient is None else gradient + training.weight_decay * start
        torch.testing.assert_close(moved[name], start - training.learning_rate * descent, rtol=1e-9, atol=1e-12)


def test_line_6_only_branches_and_heads_move(walk: Walk) -> None:
    start, end = walk.loop.before[0], walk.loop.after
    assert fingerprint(walk.task.network) == walk.fingerprint_before
    before, after = branches.hybrid_units(start["trunk"]), branches.hybrid_units(end["trunk"])
    for name, unit in after.items():
        assert fingerprint(unit.base) == fingerprint(before[name].base)
        assert unit.norm is not None
        earlier_norm = before[name].norm
        assert earlier_norm is not None
        for part, earlier in ((unit.novel, before[name].novel), (unit.norm, earlier_norm)):
            for (_, new), old in zip(part.named_parameters(), earlier.parameters(), strict=True):
                assert not torch.equal(new, old)
    for head in ("novel_head", "joint_head", "projector"):
        assert fingerprint(end[head]) != fingerprint(start[head])
    trained = {id(p) for group in walk.loop.optimizer.param_groups for p in group["params"]}
    base = [
        p
        for unit in branches.hybrid_units(walk.loop.work.get_submodule("trunk")).values()
        for p in unit.base.parameters()
    ]
    assert base and not any(id(p) in trained or p.grad is not None for p in base)


def test_lines_8_to_10_merge_kernels_and_update_gamma(walk: Walk) -> None:
    for name, unit in branches.hybrid_units(walk.loop.after["trunk"]).items():
        merged = walk.outcome.network.get_submodule(name)
        assert isinstance(merged, branches.Folded)
        assert unit.norm is not None and unit.base.bias is not None
        assert unit.norm.running_mean is not None and unit.norm.running_var is not None
        old_weight, new_weight = unit.base.weight.tolist(), unit.novel.weight.tolist()
        weight = torch.zeros_like(unit.base.weight).tolist()
        for c in range(len(weight)):
            gamma, gamma_n = unit.gamma[c].item(), unit.norm.weight[c].item()
            gate = 1 / (1 + math.exp(gamma))
            factor = gamma_n / math.sqrt(unit.norm.running_var[c].item() + unit.norm.eps)
            for i in range(len(weight[c])):
                for y in range(len(weight[c][i])):
                    for x in range(len(weight[c][i][y])):
                        fused = new_weight[c][i][y][x] * factor
                        weight[c][i][y][x] = old_weight[c][i][y][x] + gate * fused
            bias = unit.norm.bias[c].item() - unit.norm.running_mean[c].item() * factor
            assert merged.get_parameter("bias")[c].item() == pytest.approx(
                unit.base.bias[c].item() + gate * bias, rel=1e-10, abs=1e-12
            )
            assert merged.gamma[c].item() == pytest.approx(gamma + gate * gamma_n, rel=1e-10, abs=1e-12)
        torch.testing.assert_close(
            merged.get_parameter("weight"), torch.tensor(weight, dtype=torch.float64), rtol=1e-10, atol=1e-12
        )
        assert not torch.equal(merged.gamma, unit.gamma)


def test_line_11_the_next_base_model_gives_the_features_of_the_hybrid(walk: Walk) -> None:
    network = walk.outcome.network
    inputs = walk.task.first_inputs(len(walk.task.feed))
    with torch.no_grad():
        expected = copy.deepcopy(walk.loop.after["trunk"]).eval()(inputs)
        torch.testing.assert_close(network(inputs), expected, rtol=1e-9, atol=1e-9)
        assert not torch.allclose(expected, walk.task.network(inputs), atol=1e-3)
    assert not branches.is_hybrid(network) and not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert branches.count_parameters(network) == branches.count_parameters(walk.task.network)
    assert {n: t.shape for n, t in network.state_dict().items()} == {
        n: t.shape for n, t in walk.task.network.state_dict().items()
    }
    assert walk.outcome.merge is not None and walk.outcome.merge.relative_diff_float64 is not None
    assert walk.outcome.merge.relative_diff_float64 < 1e-10


def short(changes: Mapping[str, object]) -> Settings:
    return quick("inlay", {"training.epochs": 2, "training.batch": 48, **changes})


def test_without_refit_and_drift_head_and_statistics_are_left_as_they_are() -> None:
    settings = short({"classifier.refit": False, "classifier.drift": False})
    task = tiny_task(settings)
    outcome, loop = run_fixed(task)
    trained = loop.work.get_submodule("joint_head")
    assert isinstance(trained, nn.Linear) and outcome.head is trained
    assert not outcome.head.weight.requires_grad
    # Nothing in this method trains the joint head, so the old rows are the ones it was grown from.
    assert torch.equal(outcome.head.weight[:OLD_CLASSES], task.head.weight)
    assert torch.equal(outcome.statistics.mean[:OLD_CLASSES], task.statistics.mean)


def test_images_go_to_the_class_that_the_novel_head_prefers_on_merged_features() -> None:
    settings = short({})
    task = tiny_task(settings)
    outcome, loop = run_fixed(task)
    features = task.features(outcome.network)
    with torch.no_grad():
        scores = loop.work.get_submodule("novel_head")(features)
    expected = [row.index(max(row)) for row in scores.tolist()]
    assert outcome.assignments.tolist() == expected and set(expected) == {0, 1}
    for label in range(2):
        members = [features[i].double() for i, chosen in enumerate(expected) if chosen == label]
        mean = sum(members[1:], start=members[0]) / len(members)
        torch.testing.assert_close(outcome.statistics.mean[OLD_CLASSES + label].double(), mean, rtol=1e-5, atol=1e-6)
        assert outcome.statistics.counts[OLD_CLASSES + label].item() == len(members)


@pytest.mark.parametrize("new_from", ["samples", "features"])
@pytest.mark.parametrize(("residual", "most", "drawn"), [(True, 50_000, 30), (False, 50_000, 30), (True, 44, 8)])
def test_drift_moves_the_old_statistics_and_the_refit_starts_from_them(
    new_from: str, residual: bool, most: int, drawn: int
) -> None:
    settings = short(
        {
            "classifier.refit_samples": most,
            "branch.gate": "full",
            "training.learning_rate": 0.05,
            "classifier.refit_new": new_from,
            "classifier.drift_residual": residual,
        }
    )
    task = tiny_task(settings)
    outcome, _ = run_fixed(task)
    features = task.features(outcome.network)
    matrix, offset = drift_map(task.frozen_features, features, settings.classifier.ridge)
    left = features.double() - (task.frozen_features.double() @ matrix.double().T + offset.double())
    moved = task.statistics.mapped(matrix, offset, left.T @ left / len(left) if residual else None)
    torch.testing.assert_close(outcome.statistics.mean[:OLD_CLASSES], moved.mean)
    assert (moved.mean - task.statistics.mean).abs().max() > 1e-3
    torch.testing.assert_close(outcome.statistics.covariance(0), moved.covariance(0))
    samples, labels = moved.sample(drawn, generator(SEED, "refit", "old"), settings.replay.scale)
    new_samples, new_labels = features, outcome.assignments
    if new_from == "samples":
        new = class_statistics(features, outcome.assignments, 2)
        new_samples, new_labels = new.sample(drawn, generator(SEED, "refit", "new"), settings.replay.scale)
    weight, bias = refit_linear(
        torch.cat([samples, new_samples]),
        torch.cat([labels, OLD_CLASSES + new_labels]),
        OLD_CLASSES + 2,
        weight_decay=settings.classifier.refit_decay,
    )
    torch.testing.assert_close(outcome.head.weight, weight)
    torch.testing.assert_close(outcome.head.bias, bias)


def test_one_head_takes_the_part_of_the_novel_head() -> None:
    settings = short({"classifier.heads": "one", "classifier.refit": False})
    task = tiny_task(settings)
    outcome, loop = run_fixed(task)
    assert dict(loop.work.named_children()).keys() == {"trunk", "joint_head", "projector"}
    scores = outcome.head(task.features(outcome.network))[:, OLD_CLASSES:]
    assert outcome.assignments.tolist() == [row.index(max(row)) for row in scores.tolist()]
    assert isinstance(outcome.head, nn.Linear)
    assert not torch.equal(outcome.head.weight[OLD_CLASSES:], untrained_rows(task))


def untrained_rows(task: StageTask) -> Tensor:
    """The new rows of the joint head before training."""
    return grow(task.head, task.classes, generator(SEED, "joint head")).weight[OLD_CLASSES:]


def test_a_stage_draws_nothing_from_the_global_generator() -> None:
    settings = short({})
    state = torch.get_rng_state()
    run_fixed(tiny_task(settings))
    assert torch.equal(torch.get_rng_state(), state)


def test_balanced_assignment_shares_the_images_out_evenly() -> None:
    settings = short({"assignment.balanced": True})
    task = tiny_task(settings)
    outcome, loop = run_fixed(task)
    with torch.no_grad():
        scores = loop.work.get_submodule("novel_head")(task.features(outcome.network)).double()
    shares = [[math.exp(value / settings.assignment.epsilon) for value in row] for row in scores.tolist()]
    for _ in range(50):
        columns = [sum(row[label] for row in shares) for label in range(2)]
        shares = [[row[label] / columns[label] for label in range(2)] for row in shares]
        shares = [[value / sum(row) for value in row] for row in shares]
    assert outcome.assignments.tolist() == [row.index(max(row)) for row in shares]
