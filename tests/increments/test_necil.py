import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from increment_cases import course, quick, standings
from inlay import backbones, branches
from inlay.data.draws import Draws
from inlay.engine.batch import Batch
from inlay.engine.work import Work
from inlay.increments.course import Standing, next_stage, stage_task
from inlay.increments.increment import Increment
from inlay.increments.scores import score_stage
from inlay.increments.systems import catalogue, necil
from inlay.increments.work import IncrementWork
from inlay.methods.trunk import close_trunk, open_trunk, starting_network
from inlay.pipeline import Workshop
from inlay.settings import TrainingSettings

NO_IMAGES = {"memory__per_class": 0}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def base() -> Standing:
    return standings(quick(necil.FAIR, **NO_IMAGES), course((3,)))[0]


def _stage(base: Standing, gate: str = "full") -> Increment:
    return stage_task(quick(necil.FAIR, **NO_IMAGES, branch__gate=gate), course(), base, 0, CPU)


def _work(task: Increment) -> IncrementWork:
    """The work of a stage that is not trained."""
    found: list[Work] = []

    def keep(name: str, images: Increment, work: Work, settings: TrainingSettings) -> None:
        # Learning freezes what it gives back.
        found.append(copy.deepcopy(work))

    necil.FAIR.learn(task, keep)
    assert isinstance(found[0], IncrementWork)
    return found[0]


def _cosine(left: list[float], right: list[float]) -> float:
    product = sum(a * b for a, b in zip(left, right, strict=True))
    return product / math.sqrt(sum(a * a for a in left)) / math.sqrt(sum(b * b for b in right))


def _entropy(scores: Tensor, label: int) -> float:
    values: list[float] = [value / 0.1 for value in scores.tolist()]
    return math.log(sum(math.exp(value) for value in values)) - values[label]


def test_prototypes_are_the_mean_features_of_each_class_and_never_change(base: Standing) -> None:
    images = course((3, 2))
    system = quick(necil.FAIR, **NO_IMAGES)
    prototypes = base.extras["prototypes"]
    task = stage_task(system, images, None, 0, CPU)
    features = task.features(base.classifier.network).double()
    for label in range(3):
        rows = [row for row, own in zip(features, task.labels.tolist(), strict=True) if own == label]
        torch.testing.assert_close(prototypes[label].double(), sum(rows, torch.zeros(1)) / 24, rtol=1e-5, atol=1e-6)
    later = next_stage(system, images, base, 0, Workshop())
    assert torch.equal(later.extras["prototypes"][:3], prototypes)
    new = stage_task(system, images, base, 0, CPU)
    mean = new.features(later.classifier.network)[new.labels == 4].mean(dim=0)
    torch.testing.assert_close(later.extras["prototypes"][4], mean, rtol=1e-4, atol=1e-5)


def test_losses_of_a_later_stage_against_loops(base: Standing) -> None:
    task = _stage(base)
    work = _work(task)
    with torch.no_grad():
        for parameter in work.classifier.network.parameters():
            parameter.mul_(1.02)
    work.eval()
    rows = torch.tensor([0, 7, 24, 40, 47])
    batch = Batch(task.pixels[rows], task.pixels[rows], rows, rows, torch.tensor(3))
    inputs, prototypes = task.form.prepare(batch.images), base.extras["prototypes"]
    with torch.no_grad():
        found = {name: float(loss) for name, loss in work(batch).items()}
        new, old = work.classifier.network(inputs), base.classifier.network(inputs)
        scores, stored = work.classifier(inputs), work.classifier.head(prototypes)
    classification = distillation = replay = 0.0
    for place, label in enumerate(task.labels[rows].tolist()):
        similarity = max(_cosine(new[place].tolist(), prototype) for prototype in prototypes.tolist())
        classification += (1 - similarity) * _entropy(scores[place], label) / 5
        distillation += similarity * math.dist(new[place].tolist(), old[place].tolist())
    for draw in Draws(batch.key, rows).uniform(0.0, 1.0).tolist():
        replay += _entropy(stored[int(draw * 3)], int(draw * 3)) / 5
    wanted = {"classification": classification, "distillation": distillation, "replay": replay}
    assert found == pytest.approx(wanted, rel=1e-3) and distillation > 0.01
    assert work.weights(0.5) == {"classification": 1.0, "distillation": 1.0, "replay": 10.0}


def test_gradients_flow_through_the_similarity(base: Standing) -> None:
    task = _stage(base)
    work = _work(task).eval()
    rows, trained = torch.arange(4), next(work.classifier.network.parameters())
    loss = work(Batch(task.pixels[rows], task.pixels[rows], rows, rows, torch.tensor(3)))["classification"]
    (found,) = torch.autograd.grad(loss, trained)
    features = work.classifier.network(task.form.prepare(task.pixels[rows]))
    units = functional.normalize(base.extras["prototypes"])
    similarity = (functional.normalize(features) @ units.T).amax(dim=1)
    losses = functional.cross_entropy(work.classifier.head(features) / 0.1, task.labels[rows], reduction="none")
    whole, fixed = (
        torch.autograd.grad(((1 - weight) * losses).mean(), trained, retain_graph=True)[0]
        for weight in (similarity, similarity.detach())
    )
    torch.testing.assert_close(found, whole, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(whole, fixed, rtol=1e-2)


def test_the_head_keeps_old_rows_and_new_biases_start_at_zero(base: Standing) -> None:
    head = _work(_stage(base)).classifier.head
    before = base.classifier.head
    assert isinstance(head, nn.Linear) and isinstance(before, nn.Linear)
    assert torch.equal(head.weight[:3], before.weight) and torch.equal(head.bias[:3], before.bias)
    assert not head.bias[3:].any() and head.weight[3:].all() and head.weight.requires_grad


def test_adapters_stand_beside_the_convolutions_of_the_blocks_alone() -> None:
    network = backbones.build("resnet18-1x1", 3, torch.Generator().manual_seed(1)).eval()
    example = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    settings = necil.PUBLISHED.recipe.branch
    trunk = open_trunk(starting_network(network, settings, example), settings, 1, example)
    units = branches.hybrid_units(trunk)
    assert list(units) == [f"layer{g}.{b}.conv{c}" for g in (1, 2, 3, 4) for b in (0, 1) for c in (1, 2)]
    trained = {name for name, parameter in trunk.named_parameters() if parameter.requires_grad}
    assert trained == {f"{name}.novel.weight" for name in units}
    assert sum(parameter.numel() for parameter in trunk.parameters() if parameter.requires_grad) == 1_220_608
    for unit in units.values():
        assert unit.norm is None and unit.novel.weight.shape[2:] == (1, 1) and not unit.novel.weight.any()
        assert isinstance(unit.novel, nn.Conv2d) and isinstance(unit.base, nn.Conv2d)
        assert unit.novel.bias is None and unit.novel.stride == unit.base.stride


def test_adapters_merge_into_the_middle_of_their_kernels() -> None:
    randomness = torch.Generator().manual_seed(4)
    network = backbones.build("resnet8", 1, randomness).double().eval()
    example = torch.randn(3, 1, 8, 8, generator=randomness, dtype=torch.float64)
    settings = necil.PUBLISHED.recipe.branch
    folded = starting_network(network, settings, example)
    trunk = open_trunk(folded, settings, 1, example)
    units = branches.hybrid_units(trunk)
    with torch.no_grad():
        for unit in units.values():
            unit.novel.weight.normal_(0, 0.1, generator=randomness)
    closed, report = close_trunk(trunk, example)
    assert report is not None and report.relative_diff is not None and report.relative_diff < 1e-12
    torch.testing.assert_close(closed(example), trunk.eval()(example), rtol=1e-12, atol=1e-12)
    assert branches.count_parameters(closed) == branches.count_parameters(folded)
    for name, unit in units.items():
        kernel = unit.base.weight.detach().clone()
        for out in range(kernel.shape[0]):
            for channel in range(kernel.shape[1]):
                kernel[out, channel, 1, 1] += unit.novel.weight[out, channel, 0, 0].detach()
        torch.testing.assert_close(closed.get_submodule(name).weight, kernel, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gate", ["full", "frozen", "imm", "constant", "amm"])
def test_every_gate_learns_stages_without_any_image_of_old_classes(gate: str, base: Standing) -> None:
    images = course()
    system = quick(catalogue.system("necil", "B"), **NO_IMAGES, branch__gate=gate)
    first = next_stage(system, images, base, 0, Workshop())
    second = next_stage(system, images, first, 0, Workshop())
    for standing in (first, second):
        scores = score_stage(images, standing)
        assert len(standing.memory.rows) == 0 and scores.nme is None and len(scores.groups) == standing.index + 1
        assert len(standing.extras["prototypes"]) == images.seen(standing.index)
        merged = standing.merge_difference
        assert merged is None if gate in ("full", "frozen") else merged is not None and merged < 1e-4
    task = stage_task(system, images, first, 0, CPU)
    assert task.labels.min() == 5
    before, after = (task.features(standing.classifier.network) for standing in (base, first))
    assert torch.allclose(before, after, rtol=1e-5, atol=1e-5) == (gate == "frozen")


def test_the_published_system_merges_its_adapters(base: Standing) -> None:
    images = course()
    system = quick(catalogue.system("necil", "A"), **NO_IMAGES)
    second = next_stage(system, images, base, 0, Workshop())
    assert second.merge_difference is not None and second.merge_difference < 1e-4
    assert second.classifier.head(torch.zeros(1, 64)).shape == (1, 5)
    stem, kernel = "conv.weight", "layer1.0.conv1.weight"
    task = stage_task(system, images, base, 0, CPU)
    before, after = task.start.network.state_dict(), second.classifier.network.state_dict()
    assert torch.equal(before[stem], after[stem]) and not torch.equal(before[kernel], after[kernel])
    moved = (before[kernel] != after[kernel]).flatten(0, 1).any(dim=0)
    assert moved.tolist() == [[False] * 3, [False, True, False], [False] * 3]


def test_published_settings() -> None:
    for system in (necil.PUBLISHED, necil.FAIR):
        base, stage = system.recipe.base, system.recipe.stage
        assert (base.epochs, base.batch, base.learning_rate, base.weight_decay) == (101, 64, 1e-3, 2e-4)
        assert (stage.epochs, stage.batch, stage.learning_rate, stage.weight_decay) == (60, 128, 2e-4, 5e-4)
        assert [moment * 101 for moment in base.decay_at] == pytest.approx([45, 90]) and stage.decay_at == (0.75,)
        assert base.optimizer == stage.optimizer == "adam" and system.recipe.memory.share(100) == 0
    assert (necil.PUBLISHED.recipe.view, necil.PUBLISHED.recipe.backbone) == ("weak-bright", "resnet18-1x1")
