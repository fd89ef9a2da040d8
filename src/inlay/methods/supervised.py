"""The labelled base stage: cross-entropy, with an optional self-supervised term."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from inlay.data.augment import augmentation
from inlay.data.normalisation import Normalisation
from inlay.discovery.contrastive import contrastive
from inlay.engine.loop import Batch, Loop
from inlay.engine.precision import forward
from inlay.engine.randomness import generator
from inlay.heads import linear, projector
from inlay.settings import BaseSettings

__all__ = ["BaseTask", "train_base"]


@dataclass(frozen=True, eq=False)
class BaseTask:
    """The inputs of the base stage.

    Attributes:
        network: Network from images to features [B, D]; it is trained in place.
        feature_size: D.
        images: Labelled images, uint8 [N, C, H, W], on the device of the network.
        labels: Their classes, [N].
        classes: Number of classes.
        normalise: Turns images in 0..1 into the input of the network.
        settings: Settings of the base stage.
        seed: Seed of the stage.
    """

    network: nn.Module
    feature_size: int
    images: Tensor
    labels: Tensor
    classes: int
    normalise: Normalisation
    settings: BaseSettings
    seed: int


def train_base(task: BaseTask, make_loop: Callable[[Mapping[str, nn.Module]], Loop]) -> nn.Linear:
    """Train the network in place and return its head.

    Args:
        task: Network, labelled images and settings.
        make_loop: Makes the training loop for the modules of the stage.
    """
    device, size = task.images.device, task.feature_size
    head = linear(size, task.classes, generator(task.seed, "head")).to(device)
    modules: dict[str, nn.Module] = {"network": task.network, "head": head}
    if task.settings.contrastive:
        projection = projector(size, task.settings.projection, generator(task.seed, "projector"))
        modules["projector"] = projection.to(device)
    with make_loop(modules) as loop:
        for batch in loop:
            loop.update(_losses(task, modules, batch))
    return head.requires_grad_(False)


def _losses(task: BaseTask, modules: Mapping[str, nn.Module], batch: Batch) -> dict[str, Tensor]:
    settings = task.settings
    images, labels = task.images[batch.indices], task.labels[batch.indices]
    weak, strong = augmentation(settings.view), augmentation(settings.contrastive_view)
    views = [weak(images, batch.generator)]
    if settings.contrastive:
        views += [strong(images, batch.generator), strong(images, batch.generator)]
    inputs = task.normalise(torch.cat(views))
    features, *pair = torch.split(forward(task.network, inputs, settings.training.precision), len(images))
    losses = {"cross-entropy": settings.cross_entropy * functional.cross_entropy(modules["head"](features), labels)}
    if settings.contrastive:
        first, second = (modules["projector"](view) for view in pair)
        losses["contrastive"] = settings.contrastive * contrastive(first, second, settings.temperature)
    return losses
