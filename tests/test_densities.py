"""Gaussians of the classes as the classifier of a run, through every way in which it is used."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from exported import exports_predict_the_same
from inlay import Learner
from inlay.cli import app
from inlay.decisions import Merge, Reject, Rename, apply
from inlay.densities import with_densities
from inlay.discovery.density import DensityHead, density_head, shared_part
from inlay.errors import InlayError
from inlay.heads import rebuild_head
from inlay.methods import check_settings
from inlay.settings import preset
from tiny_digits import QUICK, digits
from tiny_runs import BASE, FIRST, SECOND, SEEN, fresh, quick_learner, reopened, same_weights

SETTINGS = {**QUICK, "classifier.decision": "densities", "classifier.density_rank": 20}


@functools.cache
def learned() -> Learner:
    """A learner after two stages that predicts by densities, not to be changed."""
    learner = quick_learner(settings=SETTINGS)
    learner.fit(digits(BASE))
    learner.discover(digits(FIRST).without_labels(), classes=2)
    learner.discover(digits(SECOND).without_labels(), classes=2)
    return learner


def test_the_base_stage_predicts_by_its_trained_head() -> None:
    learner = quick_learner(settings=SETTINGS)
    learner.fit(digits(BASE))
    assert learner.knowledge.densities is None
    assert learner.knowledge.classifier is learner.knowledge.head


def test_after_discovery_the_likeliest_class_is_predicted() -> None:
    known, images = learned().knowledge, fresh(SEEN)
    assert isinstance(known.densities, DensityHead)
    expected = density_head(known.statistics, shared_part(known.statistics, 4.0), 0.05, 20)(
        known.features(images)
    ).argmax(dim=1)
    assert [prediction.id for prediction in learned().predict(images)] == expected.tolist()
    assert not torch.equal(expected, known.head(known.features(images)).argmax(dim=1))


def test_it_is_as_confident_as_the_linear_head_on_drawn_features() -> None:
    known = learned().knowledge
    samples, _ = known.statistics.sample(200, torch.Generator().manual_seed(1))
    linear, densities = (head(samples).softmax(dim=1).amax(dim=1).mean() for head in (known.head, known.classifier))
    assert densities.item() == pytest.approx(linear.item(), abs=0.03)


def test_many_features_are_scored_like_few() -> None:
    known = learned().knowledge
    features = known.features(fresh(SEEN)).repeat(80, 1)
    scores = known.scores(features)
    assert len(features) > 4096
    torch.testing.assert_close(scores[-3:], known.scores(features[-3:]), rtol=1e-4, atol=1e-3)


def test_a_run_is_opened_as_it_was_saved(tmp_path: Path) -> None:
    again, _ = reopened(learned(), tmp_path / "run")
    assert same_weights(learned(), again)
    assert torch.equal(again.knowledge.logits(fresh(SEEN)), learned().knowledge.logits(fresh(SEEN)))


def test_what_densities_store_is_told(tmp_path: Path) -> None:
    learned().save(tmp_path / "run")
    densities = learned().knowledge.densities
    assert densities is not None
    per_class = sum(buffer.numel() * buffer.element_size() for buffer in densities.buffers()) / len(SEEN)
    told = CliRunner().invoke(app, ["info", str(tmp_path / "run")], terminal_width=1000)
    assert told.exit_code == 0 and f"densities {round(per_class):,}" in " ".join(told.stdout.split())


def test_a_stage_that_asks_for_the_linear_head_gets_it() -> None:
    known = learned().knowledge
    linear = known.settings.changed({"classifier.decision": "linear"})
    plain = with_densities(replace(known, settings=linear))
    assert plain.densities is None and torch.equal(plain.logits(fresh(SEEN)), known.head(known.features(fresh(SEEN))))


def test_decisions_change_the_densities() -> None:
    known, images = learned().knowledge, fresh(SEEN)
    renamed = apply(known, Rename(3, "three"))
    assert torch.equal(renamed.logits(images), known.logits(images))
    merged = apply(known, Merge((3,), 4))
    rejected = apply(known, Reject(5))
    for after, gone in ((merged, 3), (rejected, 5)):
        assert after.densities is not None
        scores = after.logits(images)
        assert (scores.argmax(dim=1) != gone).all() and torch.isfinite(scores).all()
        assert after.densities.present.tolist() == [index != gone for index in range(len(SEEN))]


def test_exports_predict_the_same(tmp_path: Path) -> None:
    assert exports_predict_the_same(learned(), fresh(SEEN), tmp_path) == {"kind": "densities"}


def test_tensors_that_do_not_fit_are_refused() -> None:
    tensors = learned().knowledge.classifier.state_dict()
    for broken in ({}, {**tensors, "more": torch.zeros(1)}, {**tensors, "means": tensors["means"][:1]}):
        with pytest.raises(InlayError, match="do not fit a head of the kind densities"):
            rebuild_head({"kind": "densities"}, broken)
    with pytest.raises(InlayError, match="unknown kind 'densities'"):
        rebuild_head({"kind": "concatenated", "novel": {"kind": "densities"}}, tensors)


@pytest.mark.parametrize("name", ["paper", "autonovel"])
def test_densities_without_whole_covariances_or_a_joint_head_are_refused(name: str) -> None:
    with pytest.raises(InlayError, match=r"^Densities need .* set replay.statistics=full"):
        check_settings(preset(name).changed({"classifier.decision": "densities"}))
