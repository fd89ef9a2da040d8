"""The plain way to train, as codes of this field write it, and how many images per second it reaches.

A data set turns one image after another into a PIL image and applies torchvision's transforms to it; the workers of a
DataLoader collate batches. The network runs with PyTorch's defaults: float32 (convolutions in TF32 on a GPU that has
it), NCHW, eager, SGD. Each view is a pass of its own. Nothing is slowed down on purpose: workers persist, memory is
pinned, copies do not block and no loss is read back.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from inlay import backbones, branches
from inlay.discovery.contrastive import contrastive
from inlay.discovery.distillation import feature_distillation
from inlay.discovery.regularization import divergence_from_uniform
from inlay.discovery.replay import replay_loss
from inlay.discovery.self_training import self_training
from inlay.discovery.triplet import mine, triplet_comparison
from inlay.errors import InlayError
from inlay.settings import preset

__all__ = ["AdmLoss", "BaseLoss", "PlainImages", "best_of_workers", "loss_of", "torchvision_views"]

Kind: TypeAlias = Literal["base", "adm"]
View: TypeAlias = Callable[[Image.Image], Tensor]
Batch: TypeAlias = tuple[list[Tensor], Tensor]

OLD_CLASSES, NEW_CLASSES = 5, 5
PADDING, SMALLEST_CROP = 4, 0.2
# Of CIFAR-10.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
# Small enough for noise to be learned from without divergence; a rate costs the same whatever it is.
RATE, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-4
# PyTorch's default.
BATCHES_AHEAD_PER_WORKER = 2
FURTHER_WARM_UP_BATCHES = 3


class PlainImages(Dataset[tuple[list[Tensor], int]]):
    """Images that are augmented one by one.

    Args:
        images: Bytes, [N, H, W, 3].
        labels: Class of each image, [N].
        views: Transforms of a PIL image; each gives one view.
    """

    def __init__(self, images: npt.NDArray[np.uint8], labels: Sequence[int], views: Sequence[View]) -> None:
        self._images = images
        self._labels = labels
        self._views = views

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        image = Image.fromarray(self._images[index])
        return [view(image) for view in self._views], self._labels[index]


class BaseLoss(nn.Module):
    """Cross-entropy of a network and its head.

    Args:
        network: From images [B, 3, H, W] to features [B, D].
        features: D.
    """

    def __init__(self, network: nn.Module, features: int) -> None:
        super().__init__()
        self.network = network
        self.head = nn.Linear(features, OLD_CLASSES)

    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Return the loss of the first view, [B, 3, H, W], and the classes, [B]."""
        return F.cross_entropy(self.head(self.network(views[0])), labels)


class AdmLoss(nn.Module):
    """The losses of ADM with the weights of the preset "paper", on branches with gate AMM.

    Args:
        network: Network in eval mode, from images [B, 3, H, W] to features [B, D]; its folded copy is the teacher.
        features: D.
        example: Network inputs, [B, 3, H, W].
    """

    old_labels: Tensor
    old_mean: Tensor
    old_std: Tensor

    def __init__(self, network: nn.Module, features: int, example: Tensor) -> None:
        super().__init__()
        self.settings = preset("paper")
        self.teacher = branches.fold(network, example)
        self.hybrid = branches.attach(network, example, "amm").train()
        self.novel_head = nn.Linear(features, NEW_CLASSES)
        self.joint_head = nn.Linear(features, OLD_CLASSES + NEW_CLASSES)
        projection = nn.Linear(features, self.settings.contrastive.projection)
        self.projector = nn.Sequential(nn.Linear(features, features), nn.ReLU(), projection)
        self.register_buffer("old_labels", torch.arange(OLD_CLASSES).repeat_interleave(self.settings.replay.per_class))
        self.register_buffer("old_mean", torch.rand(OLD_CLASSES, features))
        self.register_buffer("old_std", torch.rand(features))

    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Return the sum of all losses of two views, each [B, 3, H, W]; the labels are ignored."""
        first, second = self.hybrid(views[0]), self.hybrid(views[1])
        with torch.no_grad():
            frozen = self.teacher(views[0])
        novel, joint = self.novel_head(first.detach()), self.joint_head(first.detach())
        settings = self.settings
        losses = [
            settings.contrastive.weight
            * contrastive(self.projector(first), self.projector(second), settings.contrastive.temperature),
            settings.distillation.weight * feature_distillation(first, frozen, settings.distillation.form),
            settings.self_training.weight * self_training(joint, novel),
            settings.triplet.weight * self._triplet(first, novel),
            settings.regularization.weight * divergence_from_uniform(novel),
            settings.replay.weight * self._replay(),
        ]
        return torch.stack(losses).sum()

    def _triplet(self, features: Tensor, novel: Tensor) -> Tensor:
        positive, negative = mine(features)
        probabilities = F.softmax(novel, dim=1)
        margin = self.settings.triplet.margin
        return triplet_comparison(probabilities, probabilities[positive], probabilities[negative], margin)

    def _replay(self) -> Tensor:
        noise = torch.randn(len(self.old_labels), len(self.old_std), device=self.old_std.device)
        return replay_loss(self.joint_head, self.old_mean[self.old_labels] + self.old_std * noise, self.old_labels)


def loss_of(kind: Kind, network: str, side: int, device: torch.device) -> nn.Module:
    """Return the loss of one kind of work, a module with the network inside it, on a device.

    Args:
        kind: "base" for the labelled base stage, "adm" for a novel stage of ADM.
        network: Name of the backbone.
        side: Side of the images.
        device: Where it is computed.
    """
    backbone = backbones.build(network)
    example = torch.randn(8, 3, side, side)
    features = backbones.feature_size(backbone, example)
    if kind == "base":
        return BaseLoss(backbone, features).to(device)
    with torch.no_grad():
        backbone.train()(example)
    return AdmLoss(backbone.eval(), features, example).to(device)


def torchvision_views(kind: Kind, side: int) -> tuple[View, ...]:
    """Return the transforms of one kind of work.

    Args:
        kind: "base" has one weak view; "adm" a weak and a strong one.
        side: Side of the images.

    Raises:
        InlayError: If torchvision is missing or does not fit this build of torch.
    """
    try:
        make: Any = import_module("torchvision.transforms")
    except (ImportError, RuntimeError) as error:
        # Beside another build of torch it fails with RuntimeError, as its operators do not load.
        reason = " ".join(str(error).split())
        raise InlayError(
            f"The plain way needs torchvision; install the one that was built for this build of torch ({reason})."
        ) from error
    ending = [make.RandomHorizontalFlip(), make.ToTensor(), make.Normalize(MEAN, STD)]
    weak = make.Compose([make.RandomCrop(side, padding=PADDING), *ending])
    if kind == "base":
        return (weak,)
    colours = [make.RandomApply([make.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8), make.RandomGrayscale(p=0.2)]
    strong = make.Compose([make.RandomResizedCrop(side, scale=(SMALLEST_CROP, 1.0)), ending[0], *colours, *ending[1:]])
    return weak, strong


def best_of_workers(
    loss: nn.Module,
    images: Dataset[tuple[list[Tensor], int]],
    batch: int,
    workers: Sequence[int],
    device: torch.device,
    seconds: float,
) -> dict[str, Any]:
    """Train with each number of workers and return the figures of the fastest.

    Args:
        loss: From views and labels to a scalar; its parameters with gradients are trained.
        images: Gives views and label of one image.
        batch: Images per step.
        workers: Numbers of workers to try.
        device: Where the loss is computed.
        seconds: Least time over which each number of workers is measured, after warming up.

    Returns:
        What `_measured` returns, "workers", and "by_workers": images per second of each number of workers, or the
        error that ended it.

    Raises:
        InlayError: If the images do not fill a batch, or no number of workers works.
    """
    if batch > len(images):  # type: ignore[arg-type]  # a Dataset need not have a length, but this one does
        raise InlayError(f"There are fewer images than the {batch} of one batch; give more.")
    best: dict[str, Any] = {}
    tried: dict[str, float | str] = {}
    for count in workers:
        try:
            found = _measured(loss, _loader(images, batch, count, device), device, seconds)
        except RuntimeError as error:
            # A worker that is killed, for want of shared memory for one, ends only its own measurement.
            tried[str(count)] = " ".join(str(error).split())
            continue
        tried[str(count)] = found["images_per_s"]
        if not best or found["images_per_s"] > best["images_per_s"]:
            best = {**found, "workers": count}
    if not best:
        raise InlayError(f"The plain way did not run: {next(iter(tried.values()), 'no number of workers was given')}.")
    return {**best, "by_workers": tried}


def _loader(
    images: Dataset[tuple[list[Tensor], int]], batch: int, workers: int, device: torch.device
) -> DataLoader[tuple[list[Tensor], int]]:
    return DataLoader(
        images,
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        drop_last=True,
        persistent_workers=workers > 0,
    )


def _measured(
    loss: nn.Module, loader: DataLoader[tuple[list[Tensor], int]], device: torch.device, seconds: float
) -> dict[str, float]:
    """Train until the time is over, and return rate, time, waiting and warm-up.

    The batches that workers had made before the first step are used up while warming up, so that they do not count.
    """
    trained = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    began = time.perf_counter()
    batches = _endless(loader)
    for _ in range(loader.num_workers * BATCHES_AHEAD_PER_WORKER + FURTHER_WARM_UP_BATCHES):
        _step(loss, optimizer, next(batches), device)
    _wait(device)
    start = time.perf_counter()
    waiting, images = 0.0, 0
    while images == 0 or time.perf_counter() - start < seconds:
        asked = time.perf_counter()
        batch = next(batches)
        waiting += time.perf_counter() - asked
        _step(loss, optimizer, batch, device)
        images += len(batch[1])
    _wait(device)
    taken = time.perf_counter() - start
    return {
        "images_per_s": images / taken,
        "images": images,
        "seconds": taken,
        "waiting_s": waiting,
        "warm_up_s": start - began,
    }


def _step(loss: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, device: torch.device) -> None:
    views = [view.to(device, non_blocking=True) for view in batch[0]]
    value: Tensor = loss(views, batch[1].to(device, non_blocking=True))
    optimizer.zero_grad()
    value.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _endless(loader: DataLoader[tuple[list[Tensor], int]]) -> Iterator[Batch]:
    while True:
        yield from loader


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
