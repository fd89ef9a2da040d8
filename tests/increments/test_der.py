import re
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import slow_losses
from increment_cases import course, quick, standings
from inlay.backbones.expanded import ExpandedNetwork
from inlay.backbones.resnet import BasicBlock
from inlay.engine.batch import Batch
from inlay.engine.randomness import generator
from inlay.engine.work import Work
from inlay.heads import kaiming_linear
from inlay.increments.balance import balanced_subset
from inlay.increments.course import Standing, stage_task
from inlay.increments.increment import Increment
from inlay.increments.systems import der
from inlay.increments.systems.catalogue import system
from inlay.increments.work import IncrementWork
from inlay.settings import TrainingSettings

_QUICK = quick(der.PUBLISHED, tuning__epochs=2, tuning__batch=20)
_D = 64


@dataclass
class Trained:
    """What a stage asked to train, and in what state, without training it."""

    name: str
    images: Increment
    work: IncrementWork
    settings: TrainingSettings
    state: dict[str, Tensor]
    modes: set[bool]
    parts: set[str]


class Notes:
    """A `train` that notes what it is asked for."""

    def __init__(self) -> None:
        self.trained: list[Trained] = []

    def __call__(self, name: str, images: Increment, work: Work, settings: TrainingSettings) -> None:
        assert isinstance(work, IncrementWork)
        work.train()
        modes = {module.training for module in work.classifier.network.modules()}
        state = {name: tensor.clone() for name, tensor in work.state_dict().items()}
        free = [name for name, parameter in work.named_parameters() if parameter.requires_grad]
        parts = {re.sub(r"(networks\.\d+)\..*", r"\1", name.removeprefix("classifier.")) for name in free}
        self.trained.append(Trained(name, images, work, settings, state, modes, parts))


@pytest.fixture(scope="module")
def found() -> list[Standing]:
    return standings(_QUICK)


@pytest.fixture(scope="module")
def second_stage(found: list[Standing]) -> list[Trained]:
    # Seventeen epochs, of which one warms up.
    chosen = quick(der.PUBLISHED, stage__epochs=17)
    notes = Notes()
    chosen.learn(stage_task(chosen, course(), found[1], 0, torch.device("cpu")), notes)
    return notes.trained


def _losses(trained: Trained) -> tuple[dict[str, Tensor], Tensor, list[int]]:
    """Losses of a batch in eval mode, the features of the network and the labels."""
    rows = torch.arange(0, len(trained.images.labels), 4)
    pixels = trained.images.pixels[rows]
    work = trained.work.eval()
    losses = work(Batch(pixels, pixels, rows, rows, torch.tensor(3)))
    with torch.no_grad():
        features = work.classifier.network(trained.images.form.prepare(pixels))
    return losses, features, trained.images.labels[rows].tolist()


def test_every_stage_adds_a_network(found: list[Standing]) -> None:
    images = course()
    alone = sum(p.numel() for p in found[0].classifier.network.parameters())
    for standing in found:
        networks, classes = standing.index + 1, images.seen(standing.index)
        assert standing.scored is standing.classifier
        assert standing.classifier(images.form.prepare(images.test[:3])).shape == (3, classes)
        assert sum(p.numel() for p in standing.classifier.parameters()) == networks * (alone + _D * classes)
        assert not any(p.requires_grad for p in standing.classifier.parameters())
        assert not any(module.training for module in standing.classifier.modules())
        assert len(standing.memory.rows) == 4 * classes


def test_networks_of_earlier_stages_do_not_move(found: list[Standing]) -> None:
    images = course()
    inputs = images.form.prepare(images.test[:20])
    features = [standing.classifier.network(inputs) for standing in found]
    for earlier, later in ((0, 1), (1, 2)):
        assert torch.equal(features[later][:, : _D * later], features[earlier])
    assert not torch.allclose(features[2][:, -_D:], features[2][:, _D : 2 * _D], atol=1e-3)


def test_a_run_repeats_itself(found: list[Standing]) -> None:
    again = standings(_QUICK)
    for first, second in zip(found, again, strict=True):
        for name, tensor in first.classifier.state_dict().items():
            assert torch.equal(tensor, second.classifier.state_dict()[name])


def test_phases_of_a_stage(second_stage: list[Trained]) -> None:
    warm_up, rest, head = second_stage
    assert [trained.name for trained in second_stage] == ["the warm-up", "the new network", "the head"]
    assert (warm_up.settings.epochs, rest.settings.epochs) == (1, 16)
    assert (warm_up.settings.schedule, rest.settings.schedule) == ("cosine", "step")
    assert rest.settings.decay_at == pytest.approx((10 / 16, 12 / 16))
    assert head.settings == der.PUBLISHED.recipe.tuning
    # Old networks in eval mode beside the new one; all in eval mode while the head is trained.
    assert (warm_up.modes, rest.modes, head.modes) == ({False, True}, {False, True}, {False})
    everything = {"network.networks.2", "head.weight", "auxiliary.weight"}
    assert (warm_up.parts, rest.parts, head.parts) == (everything, everything, {"head.weight"})


def test_the_schedule_of_the_publication() -> None:
    warm_up, rest = der._phases(der.PUBLISHED.recipe.stage)
    assert (warm_up.epochs, rest.epochs) == (10, 160)
    assert rest.decay_at == pytest.approx((100 / 160, 120 / 160))
    assert system("der", "A") is der.PUBLISHED and not der.PUBLISHED.takes_branches


def test_a_large_base_stage_has_no_warm_up_and_the_first_of_equal_stages_has() -> None:
    based = der.PUBLISHED.recipe.base
    assert der._phases(based) == (replace(based, epochs=0, schedule="cosine", warm_up=0.9), based)
    stage = der.PUBLISHED.recipe.stage
    equal = quick(der.PUBLISHED, base__warm_up=stage.warm_up, base__decay_at=stage.decay_at, base__epochs=17)
    notes = Notes()
    equal.learn(stage_task(equal, course(), None, 0, torch.device("cpu")), notes)
    warm_up, rest = notes.trained
    assert [trained.name for trained in notes.trained] == ["the warm-up", "the losses"]
    assert (warm_up.settings.epochs, rest.settings.epochs) == (1, 16)
    assert rest.settings.decay_at == pytest.approx((10 / 16, 12 / 16))
    head = "classifier.head.weight"
    assert warm_up.work is rest.work and not torch.equal(warm_up.state[head], rest.state[head])
    assert all(torch.equal(warm_up.state[name], rest.state[name]) for name in warm_up.state if name != head)


def test_first_heads_are_drawn_by_kaimings_rule(second_stage: list[Trained]) -> None:
    seed = second_stage[0].images.seed
    for name, title, shape in (("classifier.head", "head", (192, 7)), ("auxiliary", "auxiliary head", (64, 3))):
        expected = kaiming_linear(*shape, generator(seed, title)).weight
        assert torch.equal(second_stage[0].state[f"{name}.weight"], expected)


def test_heads_are_drawn_anew_in_place(second_stage: list[Trained]) -> None:
    warm_up, rest, head = second_stage
    for name in ("classifier.head.weight", "auxiliary.weight"):
        assert not torch.equal(warm_up.state[name], rest.state[name])
        assert rest.state[name].abs().max() <= rest.state[name].shape[1] ** -0.5
    assert not torch.equal(rest.state["classifier.head.weight"], head.state["classifier.head.weight"])
    assert warm_up.work is rest.work and rest.work.classifier is head.work.classifier
    kept = [name for name in warm_up.state if name.startswith("classifier.network")]
    assert all(torch.equal(warm_up.state[name], head.state[name]) for name in kept)
    assert not any("bias" in name for name in warm_up.state if "head" in name or "auxiliary" in name)


def test_the_new_network_begins_as_the_one_before(second_stage: list[Trained], found: list[Standing]) -> None:
    network = second_stage[0].work.classifier.network
    assert isinstance(network, ExpandedNetwork) and len(network.networks) == 3
    for name, tensor in network.networks[1].state_dict().items():
        assert torch.equal(second_stage[0].state[f"classifier.network.networks.2.{name}"], tensor)


def test_losses_of_a_stage(second_stage: list[Trained]) -> None:
    trained = second_stage[1]
    losses, features, labels = _losses(trained)
    scores = trained.work.classifier.head(features)
    assert losses["classification"].item() == pytest.approx(slow_losses.cross_entropy(scores, labels), rel=1e-4)
    auxiliary = trained.work.get_submodule("auxiliary")(features[:, 2 * _D :])
    assert auxiliary.shape[1] == 3
    own = [label - 4 if label >= 5 else 0 for label in labels]
    assert losses["auxiliary"].item() == pytest.approx(slow_losses.cross_entropy(auxiliary, own), rel=1e-4)
    assert trained.work.weights(0.5) == {"classification": 1.0, "auxiliary": 1.0}


def test_the_head_is_tuned_on_equally_many_images_with_softened_scores(second_stage: list[Trained]) -> None:
    trained, whole = second_stage[2], second_stage[0].images
    assert torch.bincount(trained.images.labels).tolist() == [4] * 7
    drawn = balanced_subset(whole.labels, generator(whole.seed, "balanced"))
    assert torch.equal(trained.images.pixels, whole.pixels[drawn])
    losses, features, labels = _losses(trained)
    softened = trained.work.classifier.head(features) / 5
    assert losses["classification"].item() == pytest.approx(slow_losses.cross_entropy(softened, labels), rel=1e-4)
    assert list(losses) == ["classification"]


def test_the_base_stage_begins_with_shortcuts() -> None:
    notes = Notes()
    _QUICK.learn(stage_task(_QUICK, course(), None, 0, torch.device("cpu")), notes)
    (base,) = notes.trained
    norms = [name for name, module in base.work.named_modules() if isinstance(module, BasicBlock)]
    assert len(norms) == 3
    assert all(not base.state[f"{name}.norm2.weight"].any() for name in norms)
    assert all(bool(base.state[f"{name}.norm1.weight"].all()) for name in norms)
    head = base.work.classifier.head
    assert isinstance(head, nn.Linear) and head.weight.shape == (3, _D)


def test_without_tuning_the_head_stays() -> None:
    chosen = quick(der.PUBLISHED, tuning__epochs=0, stage__epochs=1, base__epochs=1)
    standing = standings(chosen, course(cut=(3, 2)))[-1]
    assert standing.classifier.head.weight.shape == (5, 2 * _D)
