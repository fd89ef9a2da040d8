"""Old head and novel head set side by side, for methods that train no joint head."""

import pytest
import torch
from torch import Tensor, nn

from inlay.backbones.twin import TwinNetwork
from inlay.discovery.statistics import ClassStatistics
from inlay.errors import InlayError
from inlay.heads import ConcatenatedHead
from inlay.methods.classifier import settle_heads_side_by_side
from inlay.methods.model import StageModel
from inlay.methods.task import StageTask
from inlay.pipeline import Workshop, learn_base, learn_stage
from tiny_digits import digits
from tiny_stage import OLD_CLASSES, SEED, quick, tiny_model, tiny_task

Side = tuple[StageTask, StageModel, nn.Module, ConcatenatedHead, ClassStatistics, Tensor, Tensor]
WITHOUT_JOINT_HEAD = ["autonovel", "ncl", "dtc", "restune"]


def settled(name: str, statistics: str = "shared") -> Side:
    task = tiny_task(quick(name, {"replay.statistics": statistics}))
    model = tiny_model(task)
    network = model.trunk.eval()
    head, described, assignments, features, drift = settle_heads_side_by_side(task, model, network)
    assert isinstance(head, ConcatenatedHead) and drift is None
    return task, model, network, head, described, assignments, features


@pytest.mark.parametrize("name", WITHOUT_JOINT_HEAD)
def test_scores_are_those_of_the_old_head_and_then_those_of_the_novel_one(name: str) -> None:
    task, model, network, head, statistics, assignments, told = settled(name)
    assert model.novel_head is not None and model.joint_head is None
    features = task.features(network)
    assert torch.equal(told, features)
    with torch.no_grad():
        scores, novel = head(features), model.novel_head(features)
        old = task.head(features[:, : task.head.in_features])
    assert torch.equal(scores[:, OLD_CLASSES:], novel)
    torch.testing.assert_close(scores[:, :OLD_CLASSES], old)
    assert scores.shape[1] == head.out_features == len(statistics) == OLD_CLASSES + task.classes
    assert assignments.tolist() == [row.index(max(row)) for row in novel.tolist()]
    assert not any(parameter.requires_grad for parameter in head.parameters())


@pytest.mark.parametrize("name", WITHOUT_JOINT_HEAD)
def test_calibrated_scores_are_measured_on_what_each_head_knows(name: str) -> None:
    task, _, network, head, *_ = settled(name)
    features = task.features(network)
    with torch.no_grad():
        plain, calibrated = head(features), head.calibrated(features)
    assert not torch.allclose(plain, calibrated, atol=1e-2)
    largest = calibrated[:, OLD_CLASSES:].amax(dim=1)
    assert largest.mean().item() == pytest.approx(0, abs=1e-4)
    assert largest.std(correction=0).item() == pytest.approx(1, rel=1e-3)
    for part in (slice(OLD_CLASSES), slice(OLD_CLASSES, None)):
        assert torch.equal(plain[:, part].argmax(dim=1), calibrated[:, part].argmax(dim=1))


@pytest.mark.parametrize("statistics", ["shared", "diagonal", "full"])
def test_the_old_head_is_measured_on_replayed_features(statistics: str) -> None:
    task, _, _, head, *_ = settled("autonovel", statistics)
    samples, _ = task.statistics.sample(4000, torch.Generator().manual_seed(1))
    with torch.no_grad():
        largest = task.head(samples).amax(dim=1)
    assert head.old_offset.item() == pytest.approx(largest.mean().item(), abs=0.2 * largest.std().item())
    assert head.old_scale.item() == pytest.approx(largest.std().item(), rel=0.2)


@pytest.mark.parametrize("statistics", ["shared", "diagonal", "full"])
def test_old_classes_use_the_first_half_of_the_features_of_a_twin_network(statistics: str) -> None:
    task, _, network, head, known, assignments, _ = settled("restune", statistics)
    assert isinstance(network, TwinNetwork)
    size = task.head.in_features
    assert head.in_features == known.mean.shape[1] == 2 * size
    assert torch.equal(head.old.weight[:, :size], task.head.weight) and not bool(head.old.weight[:, size:].any())
    torch.testing.assert_close(known.mean[:OLD_CLASSES, :size], task.statistics.mean)
    assert not bool(known.mean[:OLD_CLASSES, size:].any())
    assert known.counts.tolist() == [20] * OLD_CLASSES + [assignments.tolist().count(label) for label in range(2)]
    if statistics != "shared":
        for label in range(OLD_CLASSES):
            covariance = known.covariance(label)
            torch.testing.assert_close(
                covariance[:size, :size], task.statistics.covariance(label), rtol=5e-3, atol=1e-4
            )
            assert not bool(covariance[size:].any())
    features = task.features(network)
    for label in set(assignments.tolist()):
        members = features[[place for place, chosen in enumerate(assignments.tolist()) if chosen == label]]
        torch.testing.assert_close(known.mean[OLD_CLASSES + label], members.mean(dim=0), rtol=1e-4, atol=1e-5)


def test_the_statistics_of_old_classes_stay_as_they_were() -> None:
    task, _, _, _, known, *_ = settled("autonovel", "diagonal")
    assert torch.equal(known.mean[:OLD_CLASSES], task.statistics.mean)
    assert torch.equal(known.std[:OLD_CLASSES], task.statistics.std)


@pytest.mark.parametrize("name", WITHOUT_JOINT_HEAD)
def test_no_stage_can_follow(name: str) -> None:
    settings = quick(name, {"training.epochs": 1, "base.training.epochs": 1})
    base = learn_base(digits(["0", "1"], last=20), "resnet8", settings, SEED, Workshop())
    images = digits(["2", "3"], last=20).without_labels()
    first = learn_stage(base, images, 2, settings, Workshop())
    with pytest.raises(InlayError, match=f"^The method '{name}' trains no joint head, so no stage can follow[^.]*\\.$"):
        learn_stage(first, images, 2, quick("paper"), Workshop())
