"""Images that pass through a pretrained network once, and the features that stay of those kept out of training."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import inlay
from inlay import Learner
from inlay.backbones.pretrained import NAME
from inlay.choice import choose_network
from inlay.cli import app
from inlay.described import Described, described
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from inlay.pipeline import Workshop, learn_base, learn_stage
from inlay.selftest import held_out_images
from inlay.settings import preset
from pretrained_runs import coloured
from tiny_digits import digits
from tiny_stage import quick

CPU = torch.device("cpu")
SIDE = 32
CHANGES = choose_network((SIDE, SIDE), 3, CPU).changes


def _learner(run: Path | None = None) -> Learner:
    return Learner(NAME, settings=dict(CHANGES), seed=4, size=SIDE, device="cpu", run=run)


def test_features_are_those_of_the_base_stage() -> None:
    images = coloured(3, SIDE)
    settings = preset("inlay").changed(CHANGES)
    found = described(images, NAME, settings, Workshop())
    assert found.features is not None
    plain = learn_base(images, NAME, settings, 4, Workshop())
    given = learn_base(images, NAME, settings, 4, Workshop(), features=found.features)
    torch.testing.assert_close(found.features, plain.features(images), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(given.statistics.mean, plain.statistics.mean, rtol=1e-3, atol=1e-3)
    assert torch.equal(found.by(plain), found.features)


def test_networks_that_are_trained_or_random_are_not_asked_before() -> None:
    images = digits(["0", "1"], 0, 10)
    for settings in (quick(), quick(changes={"base.training.epochs": 0})):
        assert described(images, "resnet8", settings, Workshop()).features is None
    known = learn_base(images, "resnet8", quick(), 1, Workshop())
    assert torch.equal(Described(images).by(known), known.features(images))


def test_rows_follow_the_images() -> None:
    images = coloured(3, SIDE, each=4)
    whole = Described(images, torch.arange(12.0)[:, None])
    part = whole.select(torch.tensor([8, 1, 9]))
    assert part.features is not None and part.features.flatten().tolist() == [8, 1, 9]
    assert part.of_classes(["2", "0"]).labels.tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="left out first"):
        part.of_classes(["2"])


def test_features_of_images_kept_out_stay_while_the_network_does(tmp_path: Path) -> None:
    images = coloured(3, SIDE, each=40)
    base, learner = images.of_classes(["0", "1"]), _learner(tmp_path / "run")
    learner.fit(base, held_out=0.25)
    assert base.labels is not None
    expected = learner.knowledge.features(base.select(held_out_images(base.labels, 0.25, 4)))
    reference = learner.knowledge.reference
    assert reference is not None and len(reference) == 20
    torch.testing.assert_close(reference, expected, rtol=1e-2, atol=1e-2)
    new = images.of_classes(["2"]).without_labels()
    learner.discover(new, classes=1, all_new=True)
    kept = inlay.load(tmp_path / "run", device="cpu").knowledge.reference
    assert kept is not None and torch.equal(kept, reference)
    said = CliRunner().invoke(app, ["info", str(tmp_path / "run")]).stdout
    assert "Stored of 20 images that were kept out of training: features; no pixels." in said


def test_they_go_when_the_network_changes() -> None:
    frozen = quick(changes={"branch.gate": "frozen"})
    base = learn_base(digits(["0", "1", "2"]), "resnet8", frozen, 1, Workshop())
    features = base.features(digits(["0", "1"], 50, 60))
    referring = base.referring_to(features)
    unlabelled = digits(["3", "4"]).without_labels()
    assert replace(base, settings=quick()).referring_to(features).reference is None
    assert learn_stage(referring, unlabelled, 2, quick(), Workshop()).reference is None
    assert learn_stage(referring, unlabelled, 2, frozen, Workshop()).reference is referring.reference


def test_at_most_a_thousand_are_kept_and_none_that_half_precision_cannot_hold() -> None:
    settings = quick(changes={"branch.gate": "frozen"})
    base = learn_base(digits(["0", "1"]), "resnet8", settings, 1, Workshop())
    many = torch.arange(1500.0)[:, None].expand(1500, base.statistics.mean.shape[1])
    kept = base.referring_to(many).reference
    assert kept is not None and len(kept) == 1000 and len(set(kept[:, 0].tolist())) == 1000
    assert base.referring_to(1e6 * torch.ones_like(many)).reference is None


@pytest.mark.parametrize("shape", ["one row", "other features", "none", "not finite"])
def test_damaged_ones_are_refused(shape: str) -> None:
    base = learn_base(digits(["0", "1"]), "resnet8", quick(), 1, Workshop())
    whole = torch.ones(2, base.statistics.mean.shape[1])
    tensors, facts = replace(base, reference=whole).to_files()
    assert Knowledge.from_files(tensors, facts, CPU).reference is not None
    tensors["reference.features"] = {
        "one row": whole[0],
        "other features": whole[:, :5],
        "none": whole[:0],
        "not finite": whole / 0,
    }[shape]
    with pytest.raises(InlayError):
        Knowledge.from_files(tensors, facts, CPU)
