import functools
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from increment_cases import course, quick, standings
from inlay.engine.work import Work
from inlay.increments.aggregation import ScaledConv2d, mixing_shares
from inlay.increments.course import Standing, next_stage, stage_task
from inlay.increments.increment import Increment, System
from inlay.increments.mixing import MixingWork
from inlay.increments.nearest_mean import class_means
from inlay.increments.proxy_head import ScaledCosineHead
from inlay.increments.scores import score_stage
from inlay.increments.systems import aanets, catalogue, podnet
from inlay.increments.work import IncrementWork
from inlay.pipeline import Workshop
from inlay.settings import TrainingSettings

CPU = torch.device("cpu")
NAMES = ["icarl+aanets", "podnet+aanets"]


def _quick(name: str, **changes: int) -> System:
    return quick(catalogue.system(name, "A"), **{"tuning__epochs": 1} | changes)


@functools.cache
def _standings(name: str) -> list[Standing]:
    return standings(_quick(name))


def _stable_kernels(network: nn.Module) -> list[Tensor]:
    return [module.conv.weight for module in network.modules() if isinstance(module, ScaledConv2d)]


@pytest.mark.parametrize("name", NAMES)
def test_a_course_goes_on_with_the_pairs_of_its_first_stage(name: str) -> None:
    base, first, second = _standings(name)
    assert not mixing_shares(base.classifier) and len(mixing_shares(first.classifier)) == 3
    kernels = [module.weight for module in base.classifier.network.modules() if isinstance(module, nn.Conv2d)]
    for standing in (first, second):
        assert standing.merge_difference is None
        stable = _stable_kernels(standing.classifier.network)
        assert len(stable) == len(kernels) and all(map(torch.equal, stable, kernels))
    before, after = (standing.classifier.network.state_dict() for standing in (first, second))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"layer1.plastic.conv.weight", "layer3.stable.0.conv1.scale", "layer2.stable.0.norm1.weight"} <= changed
    shares = [float(share) for share in mixing_shares(second.classifier)]
    assert shares == (pytest.approx([0.5] * 3, abs=1e-5) if name.startswith("icarl") else [0.5] * 3)
    assert score_stage(course(), second).cnn > 1 / 7


@pytest.mark.parametrize("name", NAMES)
def test_a_later_stage_starts_at_the_function_of_the_one_before(name: str) -> None:
    system, known = _quick(name), _standings(name)
    idle = quick(system, stage__epochs=0, tuning__epochs=0)
    for before in known[:-1]:
        task = stage_task(system, course(), before, 0, CPU)
        after = next_stage(idle, course(), before, 0, Workshop())
        features = [task.features(standing.classifier.network) for standing in (before, after)]
        assert torch.equal(*features)
        scores = [task.features(standing.classifier)[:, : task.old_classes] for standing in (before, after)]
        torch.testing.assert_close(*scores)


@pytest.mark.parametrize(
    ("name", "kinds"), [("icarl+aanets", [MixingWork]), ("podnet+aanets", [IncrementWork, IncrementWork])]
)
def test_shares_are_trained_beside_the_rest_on_icarl_and_stay_on_podnet(name: str, kinds: list[type[Work]]) -> None:
    system, known = _quick(name), _standings(name)
    works: dict[str, Work] = {}

    def keep(title: str, images: Increment, work: Work, settings: TrainingSettings) -> None:
        works[title] = work
        trained = [place for place, parameter in work.named_parameters() if parameter.requires_grad]
        assert not any(place.endswith(".share") for place in trained)
        assert any(".plastic." in place for place in trained) == (title == "the losses")

    system.learn(stage_task(system, course(), known[0], 0, CPU), keep)
    assert [type(work) for work in works.values()] == kinds


@pytest.mark.parametrize("name", NAMES)
def test_the_teacher_is_the_whole_network_before(name: str) -> None:
    system, known = _quick(name), _standings(name)
    teachers: list[Increment] = []

    def keep(title: str, images: Increment, work: Work, settings: TrainingSettings) -> None:
        teachers.append(images)

    task = stage_task(system, course(), known[1], 0, CPU)
    system.learn(task, keep)
    found = teachers[0].start
    assert torch.equal(task.features(found), task.features(known[1].classifier))
    assert not any(parameter.requires_grad for parameter in found.parameters()) and not found.training


def test_shares_stay_while_the_head_alone_is_tuned() -> None:
    mixed = replace(_quick("podnet+aanets"), learn=aanets.PairedNetwork(podnet.PUBLISHED.learn, aanets._MIXING))
    kinds: list[type[Work]] = []

    def keep(title: str, images: Increment, work: Work, settings: TrainingSettings) -> None:
        kinds.append(type(work))

    mixed.learn(stage_task(mixed, course(), _standings("podnet+aanets")[0], 0, CPU), keep)
    assert kinds == [MixingWork, IncrementWork]


def test_the_balanced_set_has_twenty_images_of_each_new_class_and_all_that_are_kept() -> None:
    system = _quick("icarl+aanets", stage__epochs=1)
    images = course((3, 2), images=30)
    base = standings(system, course((3,), images=30))[0]
    task = stage_task(system, images, base, 0, CPU)
    balanced = aanets.balanced_for_mixing(task)
    assert balanced.labels.bincount().tolist() == [4, 4, 4, 20, 20]
    assert torch.equal(aanets.balanced_for_mixing(task).pixels, balanced.pixels)
    originals = {image.numpy().tobytes(): int(label) for image, label in zip(task.pixels, task.labels, strict=True)}
    drawn = zip(balanced.pixels, balanced.labels, strict=True)
    assert all(originals[image.numpy().tobytes()] == label for image, label in drawn)


def test_new_weights_of_the_cosine_head_are_imprinted_and_old_ones_stay() -> None:
    system, (base, first, _) = _quick("icarl+aanets"), _standings("icarl+aanets")
    idle = next_stage(quick(system, stage__epochs=0), course(), base, 0, Workshop())
    heads = [standing.classifier.head for standing in (base, idle, first)]
    before, start, after = (head for head in heads if isinstance(head, ScaledCosineHead))
    task = stage_task(system, course(), base, 0, CPU).of_new_classes()
    means = class_means(task.features(base.classifier.network), task.labels - 3, 2)
    length = sum(float(row.norm()) for row in before.weights) / 3
    torch.testing.assert_close(start.novel, means * length)
    assert torch.equal(start.old, before.weights) and torch.equal(after.old, before.weights)
    assert float(start.scale) == float(before.scale) != float(after.scale)
    assert not torch.equal(start.novel, after.novel)


def test_published_settings() -> None:
    icarl, on_podnet = (catalogue.system(name, "A") for name in NAMES)
    assert icarl.recipe.backbone == "resnet32-lucir" and not icarl.takes_branches and not on_podnet.takes_branches
    assert [icarl.recipe.memory.share(classes) for classes in (50, 75, 100)] == [40, 26, 20]
    for training in (icarl.recipe.base, icarl.recipe.stage):
        assert (training.epochs, training.batch, training.learning_rate, training.weight_decay) == (160, 128, 0.1, 5e-4)
        assert (training.schedule, training.decay_at, training.decay_factor) == ("step", (0.5, 0.75), 0.1)
    mixing = aanets._MIXING
    assert (mixing.learning_rate, mixing.momentum, mixing.weight_decay, mixing.nesterov) == (1e-8, 0.9, 5e-4, False)
    host = catalogue.system("podnet", "A")
    assert on_podnet.recipe == host.recipe and on_podnet.base == host.base
