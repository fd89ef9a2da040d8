"""The labelled base stage: cross-entropy, with optional self-supervised terms."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from inlay.data.augment import augmentation
from inlay.data.draws import Draws
from inlay.data.normalisation import Normalisation
from inlay.data.turns import quarter_turns
from inlay.discovery.contrastive import contrastive
from inlay.engine.batch import Batch
from inlay.engine.feed import Feed
from inlay.engine.loop import Loop
from inlay.engine.passes import pass_views
from inlay.engine.randomness import generator
from inlay.engine.work import Work
from inlay.errors import InlayError
from inlay.heads import linear, projector
from inlay.settings import BaseSettings

__all__ = ["BaseTask", "BaseWork", "train_base"]

_TURNS = 4


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
    """Network, head and the heads of the self-supervised terms in use.

    Args:
        task: The base stage.
    """

    def __init__(self, task: BaseTask) -> None:
        super().__init__()
        size, like = task.feature_size, next(task.network.parameters())
        self.task = task
        self.network = task.network
        self.head = linear(size, task.classes, generator(task.seed, "head")).to(like)
        self.projector: nn.Module | None = None
        if task.settings.contrastive:
            self.projector = projector(size, task.settings.projection, generator(task.seed, "projector")).to(like)
        self.turn_head: nn.Linear | None = None
        if task.settings.rotation:
            _, height, width = task.feed.shape
            if height != width:
                raise InlayError(f"Only square images can be turned, not {width}×{height}; set base.rotation=0.")
            self.turn_head = linear(size, _TURNS * task.classes, generator(task.seed, "turn head")).to(like)

    def weights(self, progress: float) -> dict[str, float]:
        """Return the weights of the losses in use; they do not change."""
        settings = self.task.settings
        weights = {"cross-entropy": settings.cross_entropy}
        if self.projector is not None:
            weights["contrastive"] = settings.contrastive
        if self.turn_head is not None:
            weights["rotation"] = settings.rotation
        return weights

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return cross-entropy on one view, contrastive loss on two others, and that of turned views on a fourth."""
        settings, labels = self.task.settings, self.task.labels[batch.indices]
        draws = Draws(batch.key, batch.rows)
        names = [settings.view] + [settings.contrastive_view] * 2 * (self.projector is not None)
        views = [self._view(name, batch, draws) for name in names]
        if self.turn_head is not None:
            views.append(quarter_turns(self._view(settings.view, batch, draws), _turns(batch.rows, batch.key)))
        features, *others = pass_views(self.network, tuple(views), settings.training.precision)
        losses = {"cross-entropy": functional.cross_entropy(self.head(features), labels)}
        if self.projector is not None:
            first, second = (self.projector(view) for view in others[:2])
            losses["contrastive"] = contrastive(first, second, settings.temperature)
        if self.turn_head is not None:
            target = _TURNS * labels + _turns(batch.indices, batch.key)
            losses["rotation"] = functional.cross_entropy(self.turn_head(others[-1]), target)
        return losses

    def _view(self, name: str, batch: Batch, draws: Draws) -> Tensor:
        return self.task.normalise(augmentation(name)(batch.images, draws).to(self.head.weight.dtype))


def _turns(indices: Tensor, key: Tensor) -> Tensor:
    """Return the quarter turns of images in a step, [n]: by their numbers, so the same whatever process has them."""
    return (indices + key % _TURNS) % _TURNS


def train_base(task: BaseTask, make_loop: Callable[[Work], Loop]) -> nn.Linear:
    """Train the network in place and return its head.

    Args:
        task: Network, labelled images and settings.
        make_loop: Makes the training loop for the work of the stage.
    """
    work = BaseWork(task)
    make_loop(work).run()
    return work.head.requires_grad_(False)
