"""A discovery stage small enough to be followed by hand, with a base network that was never trained."""

import copy
import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from inlay import branches
from inlay.backbones import build
from inlay.data.normalisation import Normalisation
from inlay.discovery.statistics import class_statistics
from inlay.engine.batch import Batch
from inlay.engine.feed import ResidentFeed
from inlay.engine.inference import features_of, first_images
from inlay.engine.loop import Companions, Loop
from inlay.engine.randomness import derive_seed, generator
from inlay.engine.work import Work
from inlay.heads import grow, linear, projector
from inlay.methods import StageOutcome, adaptive_discovering_and_merging, method
from inlay.methods.model import StageModel, StageOutputs, neighbours_as_companions
from inlay.methods.stage import DiscoveryWork
from inlay.methods.supervised import BaseTask
from inlay.methods.task import StageTask
from inlay.methods.trunk import open_trunk, starting_network
from inlay.settings import BaseSettings, BranchSettings, Settings, preset
from tiny_digits import QUICK, digits

__all__ = [
    "OLD_CLASSES",
    "SEED",
    "FixedLoop",
    "base_task",
    "batch_of",
    "discovery_work",
    "images_of",
    "on_device",
    "outputs_of",
    "quick",
    "run_fixed",
    "settle",
    "tiny_model",
    "tiny_task",
]

OLD_CLASSES = 3
SEED = 11
_NORMALISE = Normalisation((0.3,), (0.4,))


def quick(name: str = "inlay", changes: Mapping[str, Any] | None = None) -> Settings:
    """A preset with the quick settings and more changes."""
    return preset(name).changed({**QUICK, **(changes or {})})


@functools.cache
def _starting_network(settings: BranchSettings) -> nn.Module:
    """A resnet8 whose batch norms have, or had, various scales, negative ones among them."""
    randomness = torch.Generator().manual_seed(5)
    network = build("resnet8", 1, randomness)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 0.7, 0.5, generator=randomness)
            nn.init.normal_(module.bias, 0.0, 0.2, generator=randomness)
    inputs = _NORMALISE(digits(["0", "1", "2"], last=20).images.float() / 255)
    with torch.no_grad():
        for _ in range(20):
            network(inputs)
    return starting_network(network.eval().requires_grad_(False), settings, inputs)


def tiny_task(settings: Settings, classes: int = 2, count: int = 24) -> StageTask:
    """A stage of two digits after a base stage of three."""
    old = digits(["0", "1", "2"], last=20)
    assert old.labels is not None
    network = copy.deepcopy(_starting_network(settings.branch))
    feed = ResidentFeed(old.images)
    features = features_of(network, feed, lambda images: _NORMALISE(images.float() / 255))
    head = linear(features.shape[1], OLD_CLASSES, generator(SEED, "old head")).requires_grad_(False)
    statistics = class_statistics(features, old.labels, OLD_CLASSES, settings.replay.statistics)
    images = ResidentFeed(digits(["4", "5"], last=count).images)
    return StageTask(network, head, statistics, images, classes, _NORMALISE, settings, SEED)


def settle(trunk: nn.Module) -> nn.Module:
    """Give every branch a part in the output, as training would."""
    randomness = torch.Generator().manual_seed(6)
    for unit in branches.hybrid_units(trunk).values():
        assert unit.norm is not None
        for parameter in (unit.norm.weight, unit.norm.bias):
            parameter.data.copy_(0.5 * torch.randn(parameter.shape, generator=randomness))
    return trunk


def tiny_model(task: StageTask, novel_head: bool = True) -> StageModel:
    """The model of a stage with the heads and parts of its method, and branches that do something."""
    chosen, size = method(task.settings.method), task.head.in_features
    trunk = settle(open_trunk(task.network, task.settings.branch, task.seed, task.first_inputs(2))).train()
    head = chosen.novel_head(task) if novel_head else None
    joint = grow(task.head, task.classes, generator(SEED, "joint head")).requires_grad_(True) if chosen.joint else None
    return StageModel(trunk, head, joint, projector(size, 8, generator(SEED, "projector")), chosen.parts(task))


def on_device(task: StageTask, device: torch.device) -> StageTask:
    """The same stage on a device."""
    return replace(
        task,
        network=copy.deepcopy(task.network).to(device),
        head=copy.deepcopy(task.head).to(device),
        statistics=task.statistics.to(device),
        feed=ResidentFeed(images_of(task).to(device)),
    )


def discovery_work(task: StageTask) -> DiscoveryWork:
    """The work of a stage with branches that do something."""
    model = tiny_model(task)
    for part in model.parts().values():
        part.to(task.device)
    return DiscoveryWork(task, method(task.settings.method), model)


def base_task(settings: BaseSettings, device: torch.device | str = "cpu") -> BaseTask:
    """A base stage of three digits."""
    images = digits(["0", "1", "2"], last=20)
    assert images.labels is not None
    network = build("resnet8", 1, torch.Generator().manual_seed(5)).to(device)
    feed, labels = ResidentFeed(images.images.to(device)), images.labels.to(device)
    return BaseTask(network, 64, feed, labels, OLD_CLASSES, _NORMALISE, settings, SEED)


def images_of(task: StageTask | BaseTask) -> Tensor:
    """All images of a stage."""
    return first_images(task.feed, len(task.feed))


def batch_of(task: StageTask | BaseTask, size: int = 12) -> Batch:
    """The same batch of images of all classes, with the same randomness, each time."""
    images, key = images_of(task), derive_seed(SEED, "batch")
    device = images.device
    indices = torch.linspace(0, len(images) - 1, size).long()
    companions = neighbours_as_companions(task) if isinstance(task, StageTask) else None
    rows = indices.to(device)
    partners = rows if companions is None else companions(indices, key).to(device)
    return Batch(images[rows], images[partners], rows, rows, torch.tensor(key, device=device))


def outputs_of(task: StageTask, model: StageModel) -> StageOutputs:
    """What a model says of that batch."""
    return StageOutputs(task, model, batch_of(task))


class FixedLoop(Loop):
    """Trains on one batch with one randomness and one weighting, so that its losses compare from step to step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.totals: list[float] = []

    def take_step(self, batch: Batch) -> None:
        if self.step == 0:
            self.work.begin_epoch(0)
        indices = torch.arange(0, len(self.feed), 2)
        images = first_images(self.feed, len(self.feed))[indices]
        fixed = Batch(images, images, indices, indices, torch.tensor(derive_seed(self.seed, "fixed")))
        self._stepper(fixed, self.work.weights(1.0), self._learning_rate(self.step / self.total))
        self.totals.append(self._stepper.values.sum().item())
        self.step += 1


def run_fixed(task: StageTask) -> tuple[StageOutcome, FixedLoop]:
    """Run a stage on one batch of half of its images."""
    loops: list[FixedLoop] = []

    def make_loop(work: Work, companions: Companions | None) -> Loop:
        loops.append(FixedLoop("a stage", work, task.settings.training, task.feed, SEED, companions))
        return loops[-1]

    outcome = adaptive_discovering_and_merging(task, method(task.settings.method), make_loop)
    return outcome, loops[0]
