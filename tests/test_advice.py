"""The head of the base stage, kept where stages leave the network as it is, through every way in which it is used."""

import functools
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from exported import exports_predict_the_same
from inlay import Learner
from inlay.cli import app
from inlay.decisions import Merge, Reject, Undo, apply, replay
from inlay.discovery.advised import AdvisedDensities
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from tiny_digits import QUICK, digits
from tiny_runs import BASE, FIRST, SECOND, SEEN, fresh, quick_learner, reopened, same_weights

SETTINGS = {
    **QUICK,
    "classifier.decision": "densities",
    "classifier.advised": True,
    "classifier.drift": False,
    "branch.gate": "frozen",
    "training.epochs": 0,
}


@functools.cache
def learned() -> Learner:
    """A learner after two stages whose densities are advised, not to be changed."""
    learner = quick_learner(settings=SETTINGS)
    learner.fit(digits(BASE))
    learner.discover(digits(FIRST).without_labels(), classes=2)
    learner.discover(digits(SECOND).without_labels(), classes=2)
    return learner


def _advised(learner: Learner) -> list[int]:
    classifier = learner.knowledge.classifier
    assert isinstance(classifier, AdvisedDensities)
    return [int(place) for place in classifier.advised.nonzero()]


def test_the_head_of_the_base_stage_stays_through_all_stages() -> None:
    first = quick_learner(settings=SETTINGS)
    first.fit(digits(BASE))
    trained = first.knowledge.head
    assert first.knowledge.base_head is None and first.knowledge.classifier is trained
    kept = learned().knowledge.base_head
    assert kept is not None and trained.state_dict().keys() == kept.state_dict().keys()
    assert all(torch.equal(tensor, trained.state_dict()[name]) for name, tensor in kept.state_dict().items())
    assert _advised(learned()) == list(range(len(BASE)))


def test_a_stage_that_moves_the_network_keeps_no_advice() -> None:
    learner = quick_learner(settings={**SETTINGS, "branch.gate": "amm", "training.epochs": 1})
    learner.fit(digits(BASE))
    learner.discover(digits(FIRST).without_labels(), classes=2)
    assert learner.knowledge.base_head is None


def test_a_run_is_opened_as_it_was_saved(tmp_path: Path) -> None:
    again, _ = reopened(learned(), tmp_path / "run")
    assert same_weights(learned(), again) and _advised(again) == _advised(learned())
    assert torch.equal(again.knowledge.logits(fresh(SEEN)), learned().knowledge.logits(fresh(SEEN)))


def test_what_is_kept_of_the_head_is_told(tmp_path: Path) -> None:
    learned().save(tmp_path / "run")
    kept = learned().knowledge.base_head
    assert kept is not None
    per_class = sum(tensor.numel() * tensor.element_size() for tensor in kept.parameters()) / len(SEEN)
    told = CliRunner().invoke(app, ["info", str(tmp_path / "run")], terminal_width=1000)
    assert told.exit_code == 0
    assert f"weights of the base stage's head {round(per_class):,}" in " ".join(told.stdout.split())


def test_a_base_class_that_takes_another_in_is_advised_no_more() -> None:
    known, images = learned().knowledge, fresh(SEEN)
    merge = Merge((len(BASE),), 1)
    merged = apply(known, merge).classifier
    assert isinstance(merged, AdvisedDensities)
    assert merged.advised.tolist() == [id < len(BASE) and id != 1 for id in range(len(SEEN))]
    undone = replay(known, [merge, Undo()])
    assert torch.allclose(undone.logits(images), known.logits(images), atol=1e-3)
    rejected = apply(known, Reject(len(BASE)))
    assert isinstance(rejected.classifier, AdvisedDensities)
    assert bool((rejected.logits(images).argmax(dim=1) != len(BASE)).all())


def test_a_head_of_other_classes_is_refused() -> None:
    tensors, facts = learned().knowledge.to_files()
    for name in ("base_head.weight", "base_head.bias"):
        tensors[name] = tensors[name][:-1]
    with pytest.raises(InlayError, match=f"must have {len(BASE)} classes"):
        Knowledge.from_files(tensors, facts, torch.device("cpu"))


def test_exports_predict_the_same(tmp_path: Path) -> None:
    assert exports_predict_the_same(learned(), fresh(SEEN), tmp_path) == {"kind": "advised-densities"}
