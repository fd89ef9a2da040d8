"""What a learner refuses, and what is left after work that does not end well."""

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import inlay
from inlay import Learner
from inlay.errors import InlayError
from tiny_digits import News, digits
from tiny_runs import (
    BASE,
    FIRST,
    SECOND,
    base_learner,
    contents,
    fresh,
    quick_learner,
    reopened,
    same_weights,
)


def test_before_fit_there_is_nothing_to_work_with(tmp_path: Path) -> None:
    learner = quick_learner()
    for attempt in (
        lambda: learner.discover(digits(FIRST), classes=2),
        lambda: learner.predict(digits(FIRST)),
        lambda: learner.evaluate(digits(FIRST)),
        lambda: learner.classes,
        lambda: learner.save(tmp_path / "run"),
    ):
        with pytest.raises(InlayError, match=r"The learner knows no classes yet.* call fit"):
            attempt()
    assert not (tmp_path / "run").exists() and learner.stages == ()


def test_fit_needs_labels() -> None:
    with pytest.raises(InlayError, match="fit needs labels; give a folder with one sub-folder per class"):
        quick_learner().fit(digits(BASE).without_labels())


def test_fit_needs_two_classes() -> None:
    with pytest.raises(InlayError, match="fit needs images of at least two classes"):
        quick_learner().fit(digits(["0"]))


def test_fit_needs_images_of_each_class() -> None:
    images = digits(BASE)
    assert images.labels is not None
    with pytest.raises(InlayError, match="there are none of '2'; add some or leave it out"):
        quick_learner().fit(images.select(images.labels < 2))


def test_fit_needs_more_than_one_image_of_some_class() -> None:
    with pytest.raises(InlayError, match="fit needs more than one image of a class"):
        quick_learner().fit(digits(BASE, 0, 1))


def test_fit_happens_once(tmp_path: Path) -> None:
    learner, _ = reopened(base_learner(), tmp_path / "run")
    with pytest.raises(InlayError, match="This learner has its base classes already; add classes with discover"):
        learner.fit(digits(BASE))


@pytest.mark.parametrize(
    ("images", "classes", "sentence"),
    [
        (digits(FIRST), 0, "The number of new classes must be at least 1; got 0"),
        (digits(FIRST), -3, "The number of new classes must be at least 1; got -3"),
        (digits(FIRST), 2.0, r"The number of new classes must be a whole number, such as 5; got 2\.0"),
        (digits(FIRST), "2", "The number of new classes must be a whole number, such as 5; got '2'"),
        (digits(FIRST, 0, 1), 3, "Finding 3 new classes needs more than 3 images; got 2"),
        (digits(FIRST, 0, 1), 2, "Finding 2 new classes needs more than 2 images; got 2"),
        (digits(["3"], 0, 1), 1, "Finding a new class needs at least two images; got 1: give more images."),
        (np.zeros((0, 8, 8), dtype=np.uint8), 1, "holds no images; pass at least one"),
        ("no/such/folder", 1, "There is no file or folder 'no/such/folder'"),
    ],
)
def test_discover_says_what_is_wrong(tmp_path: Path, images: Any, classes: Any, sentence: str) -> None:
    learner, _ = reopened(base_learner(), tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(InlayError, match=sentence):
        learner.discover(images, classes)
    assert contents(tmp_path / "run") == before and len(learner.stages) == 1


def test_a_seed_is_a_whole_number() -> None:
    with pytest.raises(InlayError, match=r"The seed must be a whole number, such as 5; got 1\.5"):
        quick_learner(seed=1.5)


def test_discover_refuses_settings_that_the_run_or_the_method_cannot_follow(tmp_path: Path) -> None:
    learner, _ = reopened(base_learner(), tmp_path / "run")
    settings = learner.settings
    for changes, sentence in (
        ({"triplet.weight": 1.0}, "The method 'inlay' has no triplet term, so set its weight to 0"),
        ({"method": "thaw"}, "There is no method 'thaw'"),
        ({"first_view": "sideways"}, "There is no augmentation 'sideways'"),
        ({"replay.statistics": "shared"}, "Densities need correlations .* or classifier.decision=linear"),
        (
            {"replay.statistics": "shared", "classifier.decision": "linear"},
            r"keeps 'full' statistics .* set replay\.statistics=full",
        ),
    ):
        learner.settings = settings.changed(changes)
        with pytest.raises(InlayError, match=sentence):
            learner.discover(digits(FIRST), classes=2)
    assert len(learner.stages) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"preset": "best"}, "There is no preset 'best'; choose one of: inlay, paper"),
        ({"backbone": "resnet99"}, "Unknown backbone 'resnet99': write one of resnet8"),
        ({"device": "tpu"}, "There is no device 'tpu'; write auto, cpu or cuda"),
        (
            {"settings": {"training.speed": 3}},
            "There is no setting 'training.speed'; .*training.epochs",
        ),
        ({"settings": {"training.epochs": "many"}}, "Setting 'training.epochs' must be a whole number"),
    ],
)
def test_a_learner_says_what_is_wrong_before_it_makes_a_folder(
    options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InlayError, match=sentence):
        quick_learner(**options, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_cuda_device_is_told() -> None:
    with pytest.raises(InlayError, match="No CUDA device is available"):
        quick_learner(device="cuda")


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    folder = base_learner().save(tmp_path / "run")
    before = contents(folder)
    other = quick_learner(seed=99)
    other.fit(digits(BASE))
    for attempt in (lambda: quick_learner(run=folder, seed=99).fit(digits(BASE)), lambda: other.save(folder)):
        with pytest.raises(InlayError, match="already holds a run"):
            attempt()
    assert contents(folder) == before


def test_a_folder_without_a_run_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(InlayError, match="is not an inlay run folder"):
        inlay.load(tmp_path, device="cpu")


class Stopping(News):
    """Presses Ctrl-C when it is first told of a step."""

    def step(self, done: int, losses: Mapping[str, float]) -> None:
        if not self.losses:
            os.kill(os.getpid(), signal.SIGINT)
        super().step(done, losses)


@pytest.fixture
def unchanged(tmp_path: Path) -> Iterator[Learner]:
    """A learner that must be as before after the test has made it fail."""
    learner, _ = reopened(base_learner(), tmp_path / "run")
    images = fresh(BASE)
    before, logits = contents(tmp_path / "run"), learner.knowledge.logits(images)
    yield learner
    assert contents(tmp_path / "run") == before
    assert len(learner.stages) == 1 and learner.classes.names == ("0", "1", "2")
    assert torch.equal(learner.knowledge.logits(images), logits)
    assert same_weights(inlay.load(tmp_path / "run", device="cpu"), learner)


def test_a_stage_that_diverges_changes_nothing(unchanged: Learner) -> None:
    unchanged.settings = unchanged.settings.changed({"training.learning_rate": 1e30})
    with pytest.raises(InlayError, match=r"is not finite; .*try a lower learning rate"):
        unchanged.discover(digits(FIRST), classes=2)


def test_a_stage_that_is_stopped_changes_nothing(unchanged: Learner) -> None:
    unchanged.progress = Stopping()
    with pytest.raises(InlayError, match="repeat the command to go on from there"):
        unchanged.discover(digits(FIRST), classes=2)


def test_a_stage_goes_on_after_a_failure_or_a_stop(tmp_path: Path) -> None:
    straight, _ = reopened(base_learner(), tmp_path / "straight")
    straight.discover(digits(FIRST), classes=2)
    learner, news = reopened(base_learner(), tmp_path / "run")
    settings = learner.settings
    learner.settings = settings.changed({"training.learning_rate": 1e30})
    with pytest.raises(InlayError, match="is not finite"):
        learner.discover(digits(FIRST), classes=2)
    learner.settings, learner.progress = settings, Stopping()
    with pytest.raises(InlayError, match="Stopped stage 1"):
        learner.discover(digits(FIRST), classes=2)
    learner.progress = news
    learner.discover(digits(FIRST).without_labels(), classes=2)
    assert same_weights(learner, straight)


def test_work_with_other_images_must_be_dropped_first(tmp_path: Path) -> None:
    learner, news = reopened(base_learner(), tmp_path / "run")
    learner.progress = Stopping()
    with pytest.raises(InlayError, match="Stopped stage 1"):
        learner.discover(digits(FIRST), classes=2)
    learner.progress = news
    with pytest.raises(InlayError, match="holds unfinished work with other images or settings"):
        learner.discover(digits(SECOND), classes=2)
    learner.drop_progress()
    stage = learner.discover(digits(SECOND), classes=2)
    assert stage is not None and stage.index == 1
