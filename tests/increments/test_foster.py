import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import slow_losses
from increment_cases import course, quick, standings
from inlay.backbones.expanded import ExpandedNetwork
from inlay.engine.batch import Batch
from inlay.engine.work import Work
from inlay.errors import InlayError
from inlay.heads import kaiming_linear, linear
from inlay.increments.course import Standing, stage_task
from inlay.increments.herding import herd
from inlay.increments.increment import Increment, Learned
from inlay.increments.joint_head import widened
from inlay.increments.nearest_mean import NearestMean, class_means
from inlay.increments.scores import score_stage
from inlay.increments.systems import foster
from inlay.increments.systems.catalogue import system
from inlay.increments.systems.foster import BoostingWork, boosting_beta
from inlay.increments.work import IncrementWork
from inlay.settings import TrainingSettings

_QUICK = quick(foster.PUBLISHED, tuning__epochs=2, tuning__batch=20)
_D = 64


@dataclass
class Trained:
    """What a stage asked to train, with its losses and scores in eval mode before anything was trained."""

    name: str
    work: BoostingWork | IncrementWork
    settings: TrainingSettings
    losses: dict[str, Tensor]
    scores: Tensor
    features: Tensor


class Notes:
    """A `train` that notes what it is asked for, and changes what is trained by a little."""

    def __init__(self) -> None:
        self.trained: list[Trained] = []

    def __call__(self, name: str, images: Increment, work: Work, settings: TrainingSettings) -> None:
        assert isinstance(work, BoostingWork | IncrementWork)
        rows = torch.arange(0, len(images.labels), 4)
        pixels = images.pixels[rows]
        with torch.no_grad():
            losses = work.eval()(Batch(pixels, pixels, rows, rows, torch.tensor(3)))
            features = work.classifier.network(images.form.prepare(pixels))
            self.trained.append(Trained(name, work, settings, losses, work.classifier.head(features), features))
            for parameter in work.parameters():
                parameter.mul_(1.1 if parameter.requires_grad else 1)


@pytest.fixture(scope="module")
def found() -> list[Standing]:
    return standings(_QUICK)


@pytest.fixture(scope="module")
def task(found: list[Standing]) -> Increment:
    return stage_task(_QUICK, course(), found[1], 0, torch.device("cpu"))


@pytest.fixture(scope="module")
def noted(task: Increment) -> tuple[list[Trained], Learned]:
    notes = Notes()
    learned = _QUICK.learn(task, notes)
    return notes.trained, learned


def _batch(task: Increment) -> tuple[Tensor, list[int]]:
    rows = torch.arange(0, len(task.labels), 4)
    return task.form.prepare(task.pixels[rows]), task.labels[rows].tolist()


def _slow_weights(task: Increment, beta: float) -> list[float]:
    counts = [task.labels.tolist().count(label) for label in range(task.classes)]
    raw = [(1 - beta) / (1 - beta**count) for count in counts]
    return [len(raw) * weight / sum(raw) for weight in raw]


def _slow_distillation(student: Tensor, teacher: Tensor, weights: list[float]) -> float:
    total = 0.0
    for ours, theirs in zip((student / 2).tolist(), (teacher / 2).tolist(), strict=True):
        raised = [weight * chance for weight, chance in zip(weights, slow_losses.softmax(theirs), strict=True)]
        chances = slow_losses.softmax(ours)
        total -= sum(share / sum(raised) * math.log(chance) for share, chance in zip(raised, chances, strict=True))
    return total / len(student)


def test_two_networks_are_scored_and_one_goes_on(found: list[Standing]) -> None:
    images = course()
    alone = sum(p.numel() for p in found[0].classifier.network.parameters())
    assert found[0].scored is found[0].classifier
    for standing in found:
        classes = images.seen(standing.index)
        assert sum(p.numel() for p in standing.classifier.parameters()) == alone + (_D + 1) * classes
        if standing.index:
            scored = standing.scored
            assert sum(p.numel() for p in scored.parameters()) == 2 * alone + (2 * _D + 1) * classes
            assert scored(images.form.prepare(images.test[:3])).shape == (3, classes)
        for module in (standing.classifier, standing.scored):
            assert not any(p.requires_grad for p in module.parameters())
            assert not any(part.training for part in module.modules())


def test_the_network_before_does_not_move(found: list[Standing]) -> None:
    images = course()
    inputs = images.form.prepare(images.test[:20])
    for before, after in ((found[0], found[1]), (found[1], found[2])):
        old = before.classifier.network(inputs)
        features = after.scored.network(inputs)
        assert torch.equal(features[:, :_D], old)
        assert not torch.allclose(features[:, _D:], old, atol=1e-3)
        assert not torch.allclose(after.classifier.network(inputs), old, atol=1e-3)


def test_a_stage_starts_with_the_scores_of_the_one_before(
    noted: tuple[list[Trained], Learned], task: Increment, found: list[Standing]
) -> None:
    with torch.no_grad():
        old = found[1].classifier(_batch(task)[0])
    boosting, compression = noted[0]
    assert boosting.scores.shape[1] == compression.scores.shape[1] == 7
    assert torch.allclose(compression.scores[:, :5], old, atol=1e-5)
    # The second network is a copy of the first; what it says of old classes is added, by weights drawn at random.
    assert torch.equal(boosting.features[:, :_D], boosting.features[:, _D:])
    head = boosting.work.classifier.head
    assert isinstance(head, nn.Linear)
    added = boosting.features[:, _D:] @ head.weight[:5, _D:].T / 1.1
    assert torch.allclose(boosting.scores[:, :5] - added, old, atol=1e-4) and added.abs().min() > 0


def test_phases_of_a_stage(noted: tuple[list[Trained], Learned]) -> None:
    boosting, compression = noted[0]
    assert [trained.name for trained in noted[0]] == ["the second network", "the compression"]
    assert (boosting.settings, compression.settings) == (_QUICK.recipe.stage, _QUICK.recipe.tuning)
    assert foster.PUBLISHED.recipe.tuning.weight_decay == 0 and foster.PUBLISHED.recipe.tuning.epochs == 130
    network = boosting.work.train().classifier.network
    assert isinstance(network, ExpandedNetwork)
    assert network.newest.training and not network.networks[0].training
    assert noted[1].scored is boosting.work.classifier and noted[1].classifier is compression.work.classifier
    assert system("foster", "A") is foster.PUBLISHED and not foster.PUBLISHED.takes_branches


def test_boosting_losses(noted: tuple[list[Trained], Learned], task: Increment, found: list[Standing]) -> None:
    boosting, (inputs, labels) = noted[0][0], _batch(task)
    assert isinstance(boosting.work, BoostingWork)
    weights = _slow_weights(task, 0.95)
    aligned = boosting.scores / torch.tensor(weights)
    assert boosting.losses["classification"].item() == pytest.approx(
        slow_losses.cross_entropy(aligned, labels), rel=1e-4
    )
    # As it was before its weights were changed by a tenth.
    head = boosting.work.enhancing
    enhancing = boosting.features[:, _D:] @ head.weight.T / 1.1 + head.bias / 1.1
    assert boosting.losses["enhancement"].item() == pytest.approx(
        slow_losses.cross_entropy(enhancing, labels), rel=1e-4
    )
    with torch.no_grad():
        old = found[1].classifier(inputs)
    expected = _slow_distillation(boosting.scores[:, :5], old, [1.0] * 5)
    assert boosting.losses["distillation"].item() == pytest.approx(expected, rel=1e-4)
    assert boosting.work.weights(0.3) == dict.fromkeys(boosting.losses, 1.0)


def test_classes_weigh_otherwise_where_a_stage_brings_five() -> None:
    images = course(cut=(2, 5))
    base = standings(_QUICK, course(cut=(2,)))[0]
    wide = stage_task(_QUICK, images, base, 0, torch.device("cpu"))
    assert BoostingWork(wide)._class_weights.tolist() == pytest.approx(_slow_weights(wide, 0.94), rel=1e-5)


@pytest.mark.parametrize(
    ("new", "betas"),
    [
        (20, [0.97, 0.96, 0.95, 0.94]),
        (10, [0.98, 0.975, 0.97, 0.965, 0.96, 0.955, 0.95, 0.945, 0.94]),
        (5, [0.96] * 19),
    ],
)
def test_equal_stages_have_the_betas_of_the_published_settings(new: int, betas: list[float]) -> None:
    found = [boosting_beta(index, index * new, new) for index in range(1, 100 // new)]
    assert found == pytest.approx(betas)


@pytest.mark.parametrize(("new", "beta"), [(10, 0.94), (5, 0.94), (2, 0.95), (1, 0.95)])
def test_stages_after_a_large_base_have_one_beta(new: int, beta: float) -> None:
    assert {boosting_beta(index, 50 + (index - 1) * new, new) for index in range(1, 50 // new + 1)} == {beta}


def test_both_networks_choose_the_images_and_are_the_nearest_mean(found: list[Standing]) -> None:
    images = course()
    new = stage_task(_QUICK, images, found[0], 0, torch.device("cpu")).of_new_classes()
    both, alone = (
        herd(new.features(chooser.network), new.labels - 3, 2, 4) for chooser in (found[1].scored, found[1].classifier)
    )
    rows = images.rows(1)
    assert all(torch.equal(kept, rows[places]) for kept, places in zip(found[1].memory.ranked[3:], both, strict=True))
    assert any(not torch.equal(*pair) for pair in zip(both, alone, strict=True))
    known = images.test_labels < 5
    inputs, kept = (images.form.prepare(part) for part in (images.test[known], images.train[found[1].memory.rows]))
    with torch.no_grad():
        network = found[1].scored.network
        means = class_means(network(kept), found[1].memory.labels, 5, network(kept.flip(3)))
        right = NearestMean(means)(network(inputs)).argmax(dim=1) == images.test_labels[known]
    assert score_stage(images, found[1]).nme == pytest.approx(float(right.double().mean()))


def test_compression_is_held_against_both_networks(noted: tuple[list[Trained], Learned], task: Increment) -> None:
    boosting, compression = noted[0]
    with torch.no_grad():
        taught = boosting.work.classifier.eval()(_batch(task)[0])
    assert not torch.allclose(taught, boosting.scores, atol=1e-2)
    expected = _slow_distillation(compression.scores, taught, _slow_weights(task, 0.97))
    assert compression.losses["distillation"].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("further", [0, 2])
def test_widened_heads_keep_old_weights(further: int) -> None:
    randomness = torch.Generator().manual_seed(0)
    head = linear(4, 3, randomness).double()
    wider = widened(head, further, 5, torch.Generator().manual_seed(1))
    drawn = kaiming_linear(4 + further, 8, torch.Generator().manual_seed(1)).double()
    for row in range(8):
        for column in range(4 + further):
            expected = head.weight[row, column] if row < 3 and column < 4 else drawn.weight[row, column]
            assert wider.weight[row, column] == expected
        assert wider.bias[row] == (head.bias[row] if row < 3 else 0)
    features = torch.randn(6, 4, generator=randomness, dtype=torch.float64)
    old = torch.cat([features, features.new_zeros(6, further)], dim=1)
    assert torch.allclose(wider(old)[:, :3], head(features), atol=1e-12)
    assert isinstance(wider, nn.Linear) and wider.weight.requires_grad


def test_without_compression_there_is_no_next_stage() -> None:
    chosen = quick(foster.PUBLISHED, tuning__epochs=0)
    refused = stage_task(chosen, course(), standings(chosen, course(cut=(3,)))[0], 0, torch.device("cpu"))
    with pytest.raises(InlayError, match=r"write tuning\.epochs=1 or more"):
        chosen.learn(refused, Notes())


def test_published_settings() -> None:
    recipe = foster.PUBLISHED.recipe
    assert (recipe.base.epochs, recipe.stage.epochs, recipe.tuning.epochs) == (200, 170, 130)
    for training in (recipe.base, recipe.stage, recipe.tuning):
        assert (training.batch, training.learning_rate, training.schedule, training.warm_up) == (128, 0.1, "cosine", 0)
    assert (recipe.base.weight_decay, recipe.stage.weight_decay, recipe.tuning.weight_decay) == (5e-4, 5e-4, 0)
    assert (recipe.backbone, recipe.view, recipe.memory.share(50)) == ("resnet32-pycil", "weak-auto", 20)
