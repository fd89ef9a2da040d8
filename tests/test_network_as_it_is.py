"""A base stage of no epochs: the network is left as it is, and a head is fitted to its features."""

from pathlib import Path

import pytest
import torch

from inlay import backbones
from inlay.data.source import Measure, measure
from inlay.engine.randomness import derive_seed, generator
from inlay.errors import InlayError
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


def test_without_steps_there_is_nothing_to_rehearse() -> None:
    learner = Learner("resnet8", settings={"base.training.epochs": 0})
    with pytest.raises(InlayError, match="No steps are taken with 0 epochs"):
        learner.rehearse_fit(digits(["0", "1"], 0, 10))


def test_a_source_is_measured_without_decoding(tmp_path: Path) -> None:
    images = digits(["0", "1"], 0, 10)
    assert measure(images) == Measure(20, images.size, images.channels)
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    assert measure(tmp_path).images == 3
