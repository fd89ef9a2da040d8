"""One stage of labelled classes: what it is given, and what it gives back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from inlay import backbones, branches
from inlay.backbones.incremental_resnets import without_last_relu
from inlay.branches import MergeReport
from inlay.engine.feed import Feed, feed_of
from inlay.engine.inference import features_of, first_images
from inlay.engine.randomness import generator
from inlay.engine.work import Work
from inlay.increments.classifier import Classifier
from inlay.increments.herding import herd
from inlay.increments.recipe import Recipe
from inlay.knowledge import InputForm
from inlay.methods.trunk import open_trunk, starting_network
from inlay.settings import TrainingSettings

__all__ = ["Increment", "Learned", "System", "Train"]

_PROBE_IMAGES = 64


@dataclass(frozen=True, eq=False)
class Increment:
    """The inputs of a stage.

    Attributes:
        index: Number of the stage; 0 is the base stage.
        old_classes: Number of classes learned before, O.
        new_classes: Number of classes that this stage brings, K.
        pixels: Images of the new classes and those kept of old ones, uint8 [N, C, H, W].
        labels: Their classes, numbered in the order in which they came, int64 [N], on the device.
        before: The classifier of the stage before, frozen, over O classes; None in the base stage.
        extras: What the system has measured after the stage before, by name.
        recipe: How it is trained.
        form: What images the network takes.
        seed: Seed of the stage.
    """

    index: int
    old_classes: int
    new_classes: int
    pixels: Tensor
    labels: Tensor
    before: Classifier | None
    extras: Mapping[str, Tensor]
    recipe: Recipe
    form: InputForm
    seed: int

    @property
    def device(self) -> torch.device:
        """Where the stage is computed."""
        return self.labels.device

    @property
    def classes(self) -> int:
        """Number of all classes after the stage, O + K."""
        return self.old_classes + self.new_classes

    @property
    def training(self) -> TrainingSettings:
        """How the stage is trained."""
        return self.recipe.stage if self.index else self.recipe.base

    @cached_property
    def feed(self) -> Feed:
        """Brings the images to the device."""
        return feed_of(self.pixels, self.device)

    @cached_property
    def start(self) -> Classifier:
        """What a later stage is held against: the classifier before, folded if the stage trains branches.

        Raises:
            ValueError: In the base stage.
        """
        if self.before is None:
            raise ValueError("the base stage starts from nothing")
        network = starting_network(self.before.network, self.recipe.branch, self.first_inputs(2))
        return Classifier(network, self.before.head).frozen()

    @cached_property
    def feature_size(self) -> int:
        """Size of the features of the network that the recipe names."""
        network = backbones.build(self.recipe.backbone, self.form.channels, generator(self.seed, "backbone"))
        return backbones.feature_size(network, self.form.example())

    def opened(self) -> nn.Module:
        """Return the network to train: a new one in the base stage, later that of `start` with what may be trained."""
        if self.before is None:
            network = backbones.build(self.recipe.backbone, self.form.channels, generator(self.seed, "backbone"))
            return network.to(self.device, memory_format=torch.channels_last)  # type: ignore[no-any-return,call-overload]
        trunk = open_trunk(self.start.network, self.recipe.branch, self.seed, self.first_inputs(2))
        if self.recipe.around == "trained":
            _open_around_branches(trunk)
        return trunk

    def first_inputs(self, count: int) -> Tensor:
        """Return the first images as inputs of the network, without augmentation, at most `count`."""
        return self.form.prepare(first_images(self.feed, count))

    def probe(self) -> Tensor:
        """Return inputs on which branches and the network that they were merged into are compared."""
        return self.first_inputs(_PROBE_IMAGES)

    def features(self, network: nn.Module) -> Tensor:
        """Return the features of all images by a network, without augmentation, [N, D]."""
        return features_of(network, self.feed, self.form.prepare)

    def of_rows(self, rows: Tensor) -> "Increment":
        """Return the same stage with some of its images.

        Args:
            rows: Which, int64 [M].
        """
        return replace(self, pixels=self.pixels[rows.to(self.pixels.device)], labels=self.labels[rows])

    def of_new_classes(self) -> "Increment":
        """Return the same stage with the images of new classes alone."""
        return self.of_rows(torch.nonzero(self.labels >= self.old_classes).flatten())

    def balanced(self, network: nn.Module) -> "Increment":
        """Return the same stage with as many images of each class as are kept, chosen by herding.

        Args:
            network: Whose features decide.
        """
        count = max(1, self.recipe.memory.share(self.classes))
        features = self.features(without_last_relu(network))
        return self.of_rows(torch.cat(herd(features, self.labels, self.classes, count)))


Train = Callable[[str, Increment, Work, TrainingSettings], None]
"""Trains some work over the images of a stage; the text says what is being trained."""


def _open_around_branches(trunk: nn.Module) -> None:
    """Let everything be trained but the layers that have a branch; a network without branches stays as it is."""
    units = branches.hybrid_units(trunk).values()
    held = {id(parameter) for unit in units for parameter in unit.base.parameters()}
    for parameter in trunk.parameters() if units else ():
        parameter.requires_grad_(id(parameter) not in held)


@dataclass(frozen=True, eq=False)
class Learned:
    """What a stage gives back.

    Attributes:
        classifier: The classifier over all classes, which the next stage begins with.
        scored: The classifier that is scored, if it is another one.
        merge: How exactly branches were merged; None if there was nothing to merge.
    """

    classifier: Classifier
    scored: Classifier | None = None
    merge: MergeReport | None = None


def _nothing(task: Increment, classifier: Classifier) -> dict[str, Tensor]:
    return {}


@dataclass(frozen=True)
class System:
    """A way to learn labelled classes stage by stage.

    Attributes:
        name: Name on the command line and in files.
        summary: One line for a list of systems.
        recipe: How it is trained, unless told otherwise.
        learn: Learns one stage.
        base: What the base stage is trained for; systems in which this and the recipe of the base stage are the same
            share it.
        describe: Measures after a stage what the next one needs to know, by name; the stage has the images of that
            stage.
        takes_branches: Whether the gate of `recipe.branch` may be changed.
    """

    name: str
    summary: str
    recipe: Recipe
    learn: Callable[[Increment, Train], Learned]
    base: str
    describe: Callable[[Increment, Classifier], Mapping[str, Tensor]] = field(default=_nothing)
    takes_branches: bool = True
