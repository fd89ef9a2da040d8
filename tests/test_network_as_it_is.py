"""A base stage of no epochs: the network is left as it is, and a head is fitted to its features."""

import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from inlay import backbones
from inlay.data.source import Measure, measure
from inlay.engine.randomness import derive_seed, generator
from inlay.learner import Learner
from inlay.pipeline import Workshop, learn_base
from inlay.settings import preset
from tiny_digits import digits


def test_only_the_head_is_fitted() -> None:
    images = digits(["0", "1", "2"], 0, 30)
    settings = preset("inlay").changed({"base.training.epochs": 0})
    known = learn_base(images, "resnet8", settings, seed=3, workshop=Workshop())
    fresh = backbones.build("resnet8", images.channels, generator(derive_seed(3, "base"), "backbone"))
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(known.network.state_dict()[name], tensor), name
    assert images.labels is not None
    accuracy = (known.logits(images).argmax(dim=1) == images.labels).double().mean()
    assert float(accuracy) > 0.9


class Slow(nn.Module):
    """A network that takes a while for each image."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.inner = backbones.build("resnet8", 1, torch.Generator().manual_seed(0))
        self.seconds = seconds

    def forward(self, images: Tensor) -> Tensor:
        time.sleep(self.seconds * len(images))
        features: Tensor = self.inner(images)
        return features


def test_without_steps_a_rehearsal_passes_some_images_through_the_network() -> None:
    images = digits(["0", "1"], 0, 60)
    learner = Learner(Slow(0.02), settings={"base.training.epochs": 0})
    rehearsal = learner.rehearse_fit(images)
    assert rehearsal.steps == 0 and rehearsal.image_seconds is not None
    assert 0.02 <= rehearsal.image_seconds < 0.2
    assert rehearsal.after_seconds == pytest.approx(120 * rehearsal.image_seconds)
    assert rehearsal.total_seconds == pytest.approx(rehearsal.preparation_seconds + rehearsal.after_seconds)


def test_a_rehearsed_stage_without_steps_tells_the_time_of_its_images() -> None:
    learner = Learner("resnet8", settings={"base.training.epochs": 0, "training.epochs": 0, "branch.gate": "frozen"})
    learner.fit(digits(["0", "1", "2"], 0, 30))
    before = learner.knowledge
    rehearsal = learner.rehearse_discover(digits(["3", "4"], 0, 30), classes=2)
    assert learner.knowledge is before
    assert rehearsal.steps == 0 and rehearsal.image_seconds is not None
    console = Console(width=100)
    with console.capture() as capture:
        console.print(rehearsal.table())
    said = capture.get()
    assert "the network stays as it is" in said and "features of all images" in said
    assert "one step" not in said and "batch" not in said


def test_a_source_is_measured_without_decoding(tmp_path: Path) -> None:
    images = digits(["0", "1"], 0, 10)
    assert measure(images) == Measure(20, images.size, images.channels)
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    assert measure(tmp_path).images == 3
