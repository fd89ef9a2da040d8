import copy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import slow_losses
from inlay.backbones import build
from inlay.data.augment import augmentation
from inlay.data.draws import Draws
from inlay.data.normalisation import normalisation_of
from inlay.engine.batch import Batch
from inlay.engine.feed import ResidentFeed
from inlay.engine.loop import Loop
from inlay.engine.randomness import derive_seed
from inlay.engine.work import Work
from inlay.methods import BaseTask, train_base
from inlay.settings import BaseSettings
from tiny_digits import digits
from tiny_stage import quick

SEED = 3


class WatchedLoop(Loop):
    """Remembers the modules before each step and the weighted losses of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batches: list[Batch] = []
        self.before: list[dict[str, nn.Module]] = []
        self.losses: list[dict[str, float]] = []

    def take_step(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.before.append(copy.deepcopy(dict(self.work.named_children())))
        super().take_step(batch)
        self.losses.append(dict(zip(self._stepper.names, self._stepper.values.tolist(), strict=True)))


@dataclass(frozen=True)
class Trained:
    task: BaseTask
    loop: WatchedLoop
    head: nn.Linear
    start: dict[str, Tensor]


def trained(settings: BaseSettings) -> Trained:
    images = digits(["0", "1", "2"], last=20)
    assert images.labels is not None
    network = build("resnet8", 1, torch.Generator().manual_seed(SEED))
    normalise = normalisation_of(images.level_counts())
    feed = ResidentFeed(images.images)
    task = BaseTask(network, 64, feed, images.labels, 3, normalise, settings, SEED)
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    loops: list[WatchedLoop] = []

    def make_loop(work: Work) -> Loop:
        loops.append(WatchedLoop("the base stage", work, settings.training, feed, SEED))
        return loops[-1]

    head = train_base(task, make_loop)
    return Trained(task, loops[0], head, start)


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.5, 2.0)])
def test_losses_equal_the_loops(weights: tuple[float, float]) -> None:
    cross_entropy, contrastive = weights
    changes = {"base.cross_entropy": cross_entropy, "base.contrastive": contrastive, "base.training.batch": 30}
    run = trained(quick(changes=changes).base)
    view = augmentation("glyph")
    assert len(run.loop.losses) == 4
    for step, losses in enumerate(run.loop.losses):
        indices, modules = run.loop.batches[step].indices, run.loop.before[step]
        images = digits(["0", "1", "2"], last=20).images[indices]
        draws = Draws(derive_seed(SEED, "step", step), indices)
        views = [view(images, draws) for _ in range(3 if contrastive else 1)]
        with torch.no_grad():
            features = modules["network"].train()(run.task.normalise(torch.cat(views))).split(30)
            logits = modules["head"](features[0])
        expected = {
            "cross-entropy": cross_entropy * slow_losses.cross_entropy(logits, run.task.labels[indices].tolist())
        }
        if contrastive:
            first, second = (modules["projector"](part) for part in features[1:])
            expected["contrastive"] = contrastive * slow_losses.contrastive(first, second, 0.5)
        assert losses == pytest.approx(expected, rel=1e-4)


def test_without_the_contrastive_term_there_is_no_projector() -> None:
    with_term, without = (trained(quick(changes={"base.contrastive": weight}).base) for weight in (1.0, 0.0))
    assert dict(with_term.loop.work.named_children()).keys() == {"network", "head", "projector"}
    assert dict(without.loop.work.named_children()).keys() == {"network", "head"}


def test_training_changes_the_network_in_place_and_returns_a_frozen_head() -> None:
    run = trained(quick().base)
    for name, parameter in run.task.network.named_parameters():
        assert not torch.equal(parameter, run.start[name])
    assert run.head is run.loop.work.get_submodule("head") and not run.head.weight.requires_grad
    assert (run.head.in_features, run.head.out_features) == (64, 3)


def test_the_cross_entropy_falls() -> None:
    run = trained(quick(changes={"base.training.epochs": 6, "base.contrastive": 0.0}).base)
    values = [losses["cross-entropy"] for losses in run.loop.losses]
    assert values[-1] < values[0]
