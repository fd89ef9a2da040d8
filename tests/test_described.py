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
from inlay.discovery.drift import drift_between
from inlay.errors import InlayError
from inlay.held_out import HeldOut
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
    torch.testing.assert_close(reference.features, expected, rtol=1e-2, atol=1e-2)
    assert reference.labels.tolist() == [0] * 10 + [1] * 10
    new = images.of_classes(["2"]).without_labels()
    learner.discover(new, classes=1, all_new=True)
    kept = inlay.load(tmp_path / "run", device="cpu").knowledge.reference
    assert kept is not None and torch.equal(kept.features, reference.features)
    assert torch.equal(kept.labels, reference.labels)
    said = CliRunner().invoke(app, ["info", str(tmp_path / "run")]).stdout
    assert "Stored of 20 images that were kept out of training: class and features; no pixels." in said


def test_they_move_with_the_network() -> None:
    frozen, trained = quick(changes={"branch.gate": "frozen"}), quick(changes={"training.learning_rate": 0.05})
    base = learn_base(digits(["0", "1", "2"]), "resnet8", frozen, 1, Workshop())
    held_out = digits(["0", "1"], 50, 60)
    assert held_out.labels is not None
    features = base.features(held_out)
    referring = base.referring_to(features, held_out.labels)
    unlabelled = digits(["3", "4"]).without_labels()
    assert learn_stage(referring, unlabelled, 2, frozen, Workshop()).reference is referring.reference
    assert referring.reference is not None and referring.reference.exact
    after = learn_stage(referring, unlabelled, 2, trained, Workshop())
    moved = after.reference
    assert moved is not None and not moved.exact and torch.equal(moved.labels, held_out.labels)
    drift = drift_between(base.features(unlabelled), after.features(unlabelled), trained.classifier.ridge)
    torch.testing.assert_close(moved.features, drift(referring.reference.features), rtol=1e-2, atol=1e-2)
    true = after.features(held_out)
    assert (moved.features - true).norm() < 0.7 * (referring.reference.features - true).norm()
    tensors, facts = after.to_files()
    again = Knowledge.from_files(tensors, facts, torch.device("cpu")).reference
    assert again is not None and not again.exact and torch.equal(again.features, moved.features)
    without = quick("autonovel", {"replay.statistics": "full"})
    assert learn_stage(referring, unlabelled, 2, without, Workshop()).reference is None


def test_at_most_a_thousand_are_kept_and_none_that_half_precision_cannot_hold() -> None:
    many, labels = torch.arange(1500.0)[:, None].expand(1500, 3), torch.arange(1500)
    kept = HeldOut.drawn(many, labels, 0)
    assert kept is not None and len(kept) == 1000 and len(set(kept.labels.tolist())) == 1000
    assert torch.equal(kept.features[:, 0].long(), kept.labels)
    again, other = HeldOut.drawn(many, labels, 0), HeldOut.drawn(many, labels, 1)
    assert again is not None and other is not None
    assert torch.equal(again.labels, kept.labels) and not torch.equal(other.labels, kept.labels)
    assert HeldOut.drawn(1e6 * torch.ones(2, 3), labels[:2], 0) is None
    assert HeldOut.drawn(many[:0], labels[:0], 0) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("features", torch.ones(3)),
        ("features", torch.ones(2, 5)),
        ("features", torch.ones(0, 3)),
        ("features", torch.full((2, 3), torch.inf)),
        ("labels", torch.tensor([0])),
        ("labels", torch.tensor([0, 2])),
        ("labels", torch.tensor([-1, 0])),
        ("labels", torch.tensor([0.0, 1.0])),
    ],
)
def test_damaged_ones_are_refused(name: str, value: torch.Tensor) -> None:
    whole = HeldOut(torch.ones(2, 3), torch.tensor([0, 1])).tensors()
    assert torch.equal(HeldOut.from_tensors(whole, 3, 2).labels, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="kept out"):
        HeldOut.from_tensors({**whole, name: value}, 3, 2)


def test_a_run_with_damaged_ones_is_refused_in_words() -> None:
    base = learn_base(digits(["0", "1"]), "resnet8", quick(), 1, Workshop())
    size = base.statistics.mean.shape[1]
    tensors, facts = replace(base, reference=HeldOut(torch.ones(2, size), torch.tensor([0, 1]))).to_files()
    assert Knowledge.from_files(tensors, facts, CPU).reference is not None
    with pytest.raises(InlayError):
        Knowledge.from_files({**tensors, "reference.labels": torch.tensor([0, 9])}, facts, CPU)
