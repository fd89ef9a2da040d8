import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from increment_cases import course, quick
from inlay import branches
from inlay.backbones.task_tokens import TaskTokenNetwork
from inlay.data import ImageSet
from inlay.data.draws import Draws
from inlay.data.mixup import share_of_batch
from inlay.engine.batch import Batch
from inlay.engine.work import Work
from inlay.errors import InlayError
from inlay.increments.classifier import Classifier
from inlay.increments.course import Course, Standing, next_stage, stage_task
from inlay.increments.increment import Increment, Learned, System
from inlay.increments.scores import score_stage
from inlay.increments.systems import dytox
from inlay.increments.systems.catalogue import system
from inlay.increments.systems.dytox import Dytox, DytoxWork
from inlay.increments.task_heads import TaskHeads
from inlay.pipeline import Workshop
from inlay.settings import TrainingSettings

GATES = ["full", "frozen", "imm", "constant", "amm"]
BRANCHES = {"imm", "constant", "amm"}
_CPU = torch.device("cpu")


def _quick(**changes: object) -> System:
    few = {f"{part}__epochs": 1 for part in ("base", "stage", "tuning")}
    return quick(dytox.FAIR, **{"backbone": "dytox-tiny", "tuning__batch": 20, **few, **changes})


def _images() -> Course:
    return course(cut=(3, 2, 2))


def _next(system: System, before: Standing | None) -> Standing:
    return next_stage(system, _images(), before, 0, Workshop())


@cache
def _base() -> Standing:
    return _next(_quick(), None)


@cache
def _stage(gate: str, tuning: int = 1) -> Standing:
    return _next(_quick(branch__gate=gate, tuning__epochs=tuning), _base())


@pytest.fixture
def base() -> Standing:
    return _base()


def _network(classifier: Classifier) -> TaskTokenNetwork:
    assert isinstance(classifier.network, TaskTokenNetwork)
    return classifier.network


def _aside_from_tokens(network: TaskTokenNetwork) -> int:
    return branches.count_parameters(network) - branches.count_parameters(network.tokens)


def _moved(before: Classifier, after: Classifier) -> set[str]:
    state = after.state_dict()
    return {name for name, tensor in before.state_dict().items() if not torch.equal(tensor, state[name])}


@pytest.mark.parametrize("gate", GATES)
def test_classes_are_learned_stage_by_stage_without_growth(gate: str, base: Standing) -> None:
    found = [base, _stage(gate), _next(_quick(branch__gate=gate), _stage(gate))]
    images = _images()
    for standing in found:
        scores = standing.classifier(images.form.prepare(images.test[:3]))
        assert scores.shape == (3, images.seen(standing.index)) and scores.isfinite().all()
        assert len(_network(standing.classifier).tokens) == standing.index + 1
        assert not any(p.requires_grad for p in standing.classifier.parameters())
    assert len({_aside_from_tokens(_network(standing.classifier)) for standing in found}) == 1
    for standing in found[1:]:
        assert (standing.merge_difference is not None) == (gate in BRANCHES)
        assert standing.merge_difference is None or standing.merge_difference < 1e-5


@pytest.mark.parametrize(("gate", "tuning"), [*((gate, 1) for gate in GATES), ("full", 0), ("amm", 0)])
def test_what_a_stage_moves(gate: str, tuning: int, base: Standing) -> None:
    moved = _moved(base.classifier, _stage(gate, tuning).classifier)
    trunk = {name for name in base.classifier.state_dict() if name.startswith(("network.encoder", "network.decoder"))}
    assert moved & trunk == (set() if gate == "frozen" else trunk)
    # The token and the head of the first task are held until all classes count alike.
    assert moved - trunk == (set(base.classifier.state_dict()) - trunk if tuning else set())


def test_only_layers_with_a_branch_move_if_the_rest_is_frozen(base: Standing) -> None:
    moved = _moved(base.classifier, _next(_quick(branch__gate="amm", around="frozen"), base).classifier)
    trunk = {name for name in base.classifier.state_dict() if name.startswith(("network.encoder", "network.decoder"))}
    assert moved & trunk == {name for name in trunk if ".mlp." in name}


@pytest.mark.parametrize("gate", sorted(BRANCHES))
def test_layers_under_a_branch_are_held(gate: str) -> None:
    _, _, (stage, tuning) = _noted(gate)
    for trained in (stage, tuning):
        under = {name for name, _ in trained.work.named_parameters() if ".mlp." in name and ".base." in name}
        assert under and not under & trained.parameters


@dataclass
class Trained:
    """What a stage asked to train."""

    name: str
    images: Increment
    work: DytoxWork
    settings: TrainingSettings
    parameters: set[str]


class Notes:
    """A `train` that notes what it is asked for and changes nothing."""

    def __init__(self) -> None:
        self.trained: list[Trained] = []

    def __call__(self, name: str, images: Increment, work: Work, settings: TrainingSettings) -> None:
        assert isinstance(work, DytoxWork)
        names = {name for name, parameter in work.named_parameters() if parameter.requires_grad}
        self.trained.append(Trained(name, images, work, settings, names))


@cache
def _noted(gate: str, index: int = 1) -> tuple[Increment, Learned, list[Trained]]:
    task = stage_task(_quick(branch__gate=gate), _images(), _base() if index else None, 0, _CPU)
    notes = Notes()
    return task, Dytox()(task, notes), notes.trained


@pytest.mark.parametrize("gate", GATES)
def test_tuning_trains_tokens_heads_and_what_is_open_behind_the_encoder(gate: str) -> None:
    task, _, (stage, tuning) = _noted(gate)
    assert {name for name in stage.parameters if ".tokens." in name} == {"classifier.network.tokens.1"}
    assert all(name.startswith("classifier.head.heads.1") for name in stage.parameters if ".head." in name)
    assert any(name.startswith("newest") for name in stage.parameters) and stage.settings == task.recipe.stage
    opened = {name for name in stage.parameters if "network.decoder" in name}
    assert bool(opened) == (gate != "frozen")
    assert {name for name in tuning.parameters if "network.tokens" not in name and ".head." not in name} == opened
    assert {"classifier.network.tokens.0", "classifier.head.heads.0.1.weight"} <= tuning.parameters
    assert set(tuning.work.weights(0.0)) == {"binary"} and tuning.settings == task.recipe.tuning
    assert torch.bincount(tuning.images.labels).tolist() == [4] * 5


@pytest.mark.parametrize("gate", GATES)
def test_a_stage_starts_with_the_scores_of_the_one_before(gate: str, base: Standing) -> None:
    task, learned, _ = _noted(gate)
    inputs = task.first_inputs(9)
    torch.testing.assert_close(learned.classifier(inputs)[:, :3], base.classifier(inputs))


def _work(index: int) -> tuple[Increment, DytoxWork, Batch]:
    task, _, trained = _noted("full", index)
    rows = torch.arange(0, len(task.labels), 5)
    return task, trained[0].work, Batch(task.pixels[rows], task.pixels[rows], rows, rows, torch.tensor(11))


def _slow_binary(scores: Tensor, targets: Tensor) -> float:
    total = 0.0
    for score, target in zip(scores.flatten().tolist(), targets.flatten().tolist(), strict=True):
        chance = 1 / (1 + math.exp(-score))
        total -= target * math.log(chance) + (1 - target) * math.log(1 - chance)
    return total / scores.numel()


def test_losses_of_a_later_stage_are_those_of_blends(base: Standing) -> None:
    task, work, batch = _work(1)
    share, last = share_of_batch(batch.key, 0.8).item(), len(batch.rows) - 1
    plain, labels = task.form.prepare(batch.images), task.labels[batch.rows]
    inputs, targets = torch.empty_like(plain), torch.empty(len(plain), 5)
    for row in range(last + 1):
        inputs[row] = share * plain[row] + (1 - share) * plain[last - row]
        for label in range(5):
            own, other = (0.9 * float(labels[place] == label) + 0.02 for place in (row, last - row))
            targets[row, label] = share * own + (1 - share) * other
    network = _network(work.classifier)
    with torch.no_grad():
        losses = work.train()(batch)
        embeddings = network(inputs, network.drawn_paths(Draws(batch.key, batch.rows)))
        scores, old = work.classifier.head(embeddings), base.classifier(inputs)
        assert work.newest is not None
        newest = work.newest(embeddings[:, 32:])
    assert losses["binary"].item() == pytest.approx(_slow_binary(scores, targets), rel=1e-4)
    divergence = functional.kl_div(scores[:, :3].log_softmax(1), old.softmax(1), reduction="sum") / old.numel()
    assert losses["distillation"].item() == pytest.approx(divergence.item(), rel=1e-3, abs=1e-7)
    gathered = torch.cat([targets[:, :3].sum(dim=1, keepdim=True), targets[:, 3:]], dim=1)
    assert newest.shape == (last + 1, 3)
    assert losses["newest"].item() == pytest.approx(_slow_binary(newest, gathered), rel=1e-4)
    assert work.weights(0.5) == pytest.approx({"binary": 0.4, "distillation": 0.6, "newest": 0.1})


def test_the_base_stage_has_the_binary_loss_alone() -> None:
    _, work, batch = _work(0)
    assert set(work(batch)) == {"binary"} and work.weights(0.0) == {"binary": 1.0} and work.newest is None


def test_a_step_waits_for_nothing() -> None:
    _, work, batch = _work(1)
    # These tensors have no values, so that whatever needs one fails.
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        tensors = (batch.images, batch.partners, batch.rows, batch.indices, batch.key)
        losses = work(Batch(*(mode.from_tensor(tensor) for tensor in tensors)))
    assert set(losses) == {"binary", "distillation", "newest"}


def test_training_draws_nothing_from_the_global_generator(base: Standing) -> None:
    first = _stage("amm").classifier.state_dict()
    torch.manual_seed(2)
    second = _next(_quick(branch__gate="amm"), base).classifier.state_dict()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def _textures(count: int, seed: int) -> ImageSet:
    """Noise on a pattern of four pixels, repeated over the image, which is the class."""
    patterns = np.array([[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).reshape(5, 2, 2)
    labels = np.repeat(np.arange(5), count)
    noise = np.random.default_rng(seed).integers(0, 120, (len(labels), 8, 8))
    return ImageSet.from_arrays((noise + 120 * np.tile(patterns, (1, 4, 4))[labels]).astype(np.uint8), labels)


def test_new_classes_are_learned() -> None:
    parts = ("base", "stage", "tuning")
    learnt = {f"{part}__{name}": value for part in parts for name, value in (("learning_rate", 3e-3), ("batch", 10))}
    system = _quick(base__epochs=8, stage__epochs=8, tuning__epochs=6, memory__per_class=10, **learnt)
    images = Course(_textures(20, 0), _textures(20, 1), range(5), (3, 2))
    first = next_stage(system, images, None, 0, Workshop())
    assert score_stage(images, first).cnn > 0.8
    assert min(score_stage(images, next_stage(system, images, first, 0, Workshop())).groups) > 0.8


def test_each_head_scores_its_own_task() -> None:
    heads = TaskHeads([torch.nn.Linear(2, 3), torch.nn.Linear(2, 1)])
    embeddings = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    found = heads(embeddings)
    torch.testing.assert_close(found[:, :3], heads.heads[0](embeddings[:, :2]))
    torch.testing.assert_close(found[:, 3:], heads.heads[1](embeddings[:, 2:]))
    with pytest.raises(ValueError, match="one task at least"):
        TaskHeads([])


def test_other_backbones_are_refused() -> None:
    with pytest.raises(InlayError, match="backbone=dytox or dytox-tiny"):
        _next(_quick(backbone="resnet8"), None)


def test_settings_are_those_of_the_literature() -> None:
    for found in (system("dytox+", "A"), system("dytox+", "B")):
        recipe = found.recipe
        assert recipe.stage == recipe.base and recipe.stage.epochs == 500 and recipe.stage.optimizer == "adamw"
        assert recipe.stage.learning_rate == 5e-4 * recipe.stage.batch / 512
        assert recipe.tuning.epochs == 20 and recipe.tuning.learning_rate == 5e-5 * recipe.tuning.batch / 512
        assert recipe.backbone == "dytox"
    shares = [found.recipe.memory.share(50) for found in (dytox.PUBLISHED, dytox.FAIR)]
    assert shares == [40, 20] and dytox.FAIR.recipe.view == "weak"
