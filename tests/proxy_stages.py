"""A labelled stage in float64, small enough to be followed by hand, of systems with proxies."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from increment_cases import quick
from inlay.backbones.resnet import resnet
from inlay.data.normalisation import Normalisation
from inlay.engine.batch import Batch
from inlay.engine.work import Work
from inlay.increments.classifier import Classifier
from inlay.increments.increment import Increment, System
from inlay.increments.proxy_head import ProxyHead, random_proxies
from inlay.increments.work import IncrementWork
from inlay.knowledge import InputForm
from inlay.pipeline import Workshop
from inlay.settings import TrainingSettings
from tiny_digits import digits

__all__ = ["GROUPS", "NEW", "OLD", "Watch", "batch_of", "exact_stage", "moved"]

OLD, NEW = 3, 2
GROUPS = ("layer1", "layer2", "layer3")


class _ExactNormalisation(Normalisation):
    def __call__(self, images: Tensor) -> Tensor:
        return super().__call__(images.double())


class _ExactForm(InputForm):
    @property
    def normalise(self) -> Normalisation:
        return _ExactNormalisation(self.mean, self.std)


def moved(network: nn.Module, seed: int) -> nn.Module:
    """Give the batch norms of a network scales, shifts and statistics as training would, in place."""
    randomness = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            nn.init.normal_(module.weight, 0.7, 0.5, generator=randomness)
            nn.init.normal_(module.bias, 0.0, 0.3, generator=randomness)
            nn.init.normal_(module.running_mean, 0.0, 0.3, generator=randomness)
            nn.init.uniform_(module.running_var, 0.5, 1.5, generator=randomness)
    return network


def _before() -> Classifier:
    randomness = torch.Generator().manual_seed(7)
    network = moved(resnet(1, [4, 6, 8], 1, generator=randomness), 1)
    return Classifier(network, ProxyHead(random_proxies(OLD, 10, 8, randomness), scale=3.0)).double().frozen()


def exact_stage(system: System, images: int = 12, kept: int = 4, **changes: Any) -> Increment:
    """The stage of the digits 3 and 4 after 0, 1 and 2, of which some images are kept, with 8x8 pixels."""
    new, old = digits(["3", "4"], last=images), digits(["0", "1", "2"], last=kept)
    assert new.labels is not None and old.labels is not None
    stage = Increment(
        index=1,
        old_classes=OLD,
        new_classes=NEW,
        pixels=torch.cat([new.images, old.images]),
        labels=torch.cat([new.labels + OLD, old.labels]),
        before=_before(),
        extras={},
        recipe=quick(system, **{"tuning__epochs": 1, "stage__epochs": 1} | changes).recipe,
        form=_ExactForm((8, 8), 1, (0.3,), (0.4,)),
        seed=11,
    )
    assert stage.before is not None
    measured = stage.of_rows(torch.nonzero(stage.labels < OLD).flatten())
    return replace(stage, extras=system.describe(measured, stage.before))


def batch_of(stage: Increment, size: int = 7) -> Batch:
    """Some images of all classes."""
    rows = torch.linspace(0, len(stage.labels) - 1, size).long()
    return Batch(stage.pixels[rows], stage.pixels[rows], rows, rows, torch.tensor(5))


class Watch:
    """Trains as a course does, and remembers what.

    Args:
        inputs: On which the classifier is evaluated before each training.
        train: Whether to train at all.
    """

    def __init__(self, inputs: Tensor | None = None, train: bool = True) -> None:
        self._inputs, self._train = inputs, train
        self.works: dict[str, IncrementWork] = {}
        self.images: dict[str, Increment] = {}
        self.scores: dict[str, Tensor] = {}

    def __call__(self, name: str, images: Increment, work: Work, settings: TrainingSettings) -> None:
        assert isinstance(work, IncrementWork)
        self.works[name], self.images[name] = work, images
        if self._inputs is not None:
            with torch.no_grad():
                self.scores[name] = work.classifier.eval()(self._inputs)
        if settings.epochs and self._train:
            Workshop().loop_maker(name, settings, images.feed, 3, "")(work, None).run()
