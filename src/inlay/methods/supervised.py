"""The labelled base stage: cross-entropy, with an optional self-supervised term."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from inlay.data.augment import augmentation
from inlay.data.draws import Draws
from inlay.data.normalisation import Normalisation
from inlay.discovery.contrastive import contrastive
from inlay.engine.batch import Batch
from inlay.engine.feed import Feed
from inlay.engine.loop import Loop
from inlay.engine.passes import pass_views
from inlay.engine.randomness import generator
from inlay.engine.work import Work
from inlay.heads import linear, projector
from inlay.settings import BaseSettings

__all__ = ["BaseTask", "BaseWork", "train_base"]


@dataclass(frozen=True, eq=False)
class BaseTask:
    """The inputs of the base stage.

    Attributes:
        network: Network from images to features [B, D]; it is trained in place.
        feature_size: D.
        feed: Brings the labelled images to the device of the network.
        labels: Their classes, [N], on the same device.
        classes: Number of classes.
        normalise: Turns images in 0..1 into the input of the network.
        settings: Settings of the base stage.
        seed: Seed of the stage.
    """

    network: nn.Module
    feature_size: int
    feed: Feed
    labels: Tensor
    classes: int
    normalise: Normalisation
    settings: BaseSettings
    seed: int


class BaseWork(Work):
    """Network, head and, with a contrastive term, its projection head.

    Args:
        task: The base stage.
    """

    def __init__(self, task: BaseTask) -> None:
        super().__init__()
        size, parameter = task.feature_size, next(task.network.parameters())
        self.task = task
        self.network = task.network
        self.head = linear(size, task.classes, generator(task.seed, "head")).to(parameter)
        self.projector: nn.Module | None = None
        if task.settings.contrastive:
            projection = projector(size, task.settings.projection, generator(task.seed, "projector"))
            self.projector = projection.to(parameter)

    def weights(self, progress: float) -> dict[str, float]:
        """Return the weights of the two losses; they do not change."""
        settings = self.task.settings
        weights = {"cross-entropy": settings.cross_entropy}
        return {**weights, "contrastive": settings.contrastive} if self.projector is not None else weights

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return cross-entropy on one view and contrastive loss on two others."""
        task, settings = self.task, self.task.settings
        draws = Draws(batch.key, batch.rows)
        names = [settings.view] + [settings.contrastive_view] * 2 * (self.projector is not None)
        dtype = self.head.weight.dtype
        views = (task.normalise(augmentation(name)(batch.images, draws).to(dtype)) for name in names)
        features, *pair = pass_views(self.network, tuple(views), settings.training.precision)
        losses = {"cross-entropy": functional.cross_entropy(self.head(features), task.labels[batch.indices])}
        if self.projector is not None:
            first, second = (self.projector(view) for view in pair)
            losses["contrastive"] = contrastive(first, second, settings.temperature)
        return losses


def train_base(task: BaseTask, make_loop: Callable[[Work], Loop]) -> nn.Linear:
    """Train the network in place and return its head.

    Args:
        task: Network, labelled images and settings.
        make_loop: Makes the training loop for the work of the stage.
    """
    work = BaseWork(task)
    make_loop(work).run()
    return work.head.requires_grad_(False)
