"""What every pretrained backbone is put through: branches, and a run from its first stage to its reopening."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import inlay
from inlay import Learner, branches
from inlay.data import ImageSet
from tiny_digits import QUICK, News

__all__ = ["BRIEF", "coloured", "merge_gap_after_training", "same_features_in_training", "stages_and_reopening"]

BRIEF: dict[str, Any] = {
    **QUICK,
    "base.training.epochs": 1,
    "base.training.learning_rate": 0.01,
    "base.training.precision": "float32",
    "training.epochs": 1,
    "training.learning_rate": 0.01,
    "training.precision": "float32",
}


def coloured(classes: int, side: int, each: int = 12) -> ImageSet:
    """Noise whose colour tells the class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(each)
    pixels = torch.randint(0, 120, (len(labels), 3, side, side), generator=generator)
    pixels[torch.arange(len(labels)), labels % 3] += 100
    return ImageSet.from_arrays(pixels.to(torch.uint8), labels)


def merge_gap_after_training(network: nn.Module, images: Tensor) -> tuple[float, branches.Plan]:
    """Attach AMM branches in float64, train them for some steps, merge; return how far the outputs differ."""
    plan = branches.plan(network.double(), images)
    hybrid = branches.attach(network, images, "amm", generator=torch.Generator().manual_seed(0)).train()
    optimizer = torch.optim.SGD(branches.branch_parameters(hybrid), lr=0.1)
    labels = torch.arange(len(images)) % 3
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(hybrid(images)[:, :3], labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    hybrid.eval()
    with torch.no_grad():
        learned = hybrid(images)
        assert not torch.allclose(learned, network(images), atol=1e-4), "the branches have learned something"
        merged = branches.merge(hybrid, images).model
        return (merged(images) - learned).abs().max().item(), plan


def same_features_in_training(network: nn.Module, images: Tensor) -> bool:
    """Whether a network without batch norms gives the same twice in train mode, as it does without dropout."""
    network.train()
    with torch.no_grad():
        return torch.equal(network(images), network(images))


def stages_and_reopening(backbone: str, run: Path, size: int | None) -> tuple[Learner, Learner, News]:
    """Learn two base classes and two new ones, and open the run again; also give the news."""
    news, images = News(), coloured(4, 24)
    learner = Learner(backbone, settings=BRIEF, device="cpu", run=run, size=size, progress=news)
    learner.fit(images.of_classes(["0", "1"]))
    record = learner.discover(images.of_classes(["2", "3"]).without_labels(), classes=2)
    assert record is not None and record.merge is not None
    assert record.merge["max_abs_diff"] < 1e-4
    assert record.merge["parameters_after"] == record.merge["parameters_before"]
    return learner, inlay.load(run, device="cpu"), news
