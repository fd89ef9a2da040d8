"""Piles in which known images are mixed with new ones, through the learner."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import inlay
from inlay.calibration import Calibration
from inlay.data import ImageSet
from inlay.errors import InlayError
from inlay.learner import Learner
from tiny_digits import QUICK, News, digits
from tiny_stage import quick

KNOWN, NEW = ["0", "1", "2", "4"], ["3", "6"]
SETTINGS = {**QUICK, "base.training.epochs": 12, "base.training.learning_rate": 0.05, "training.epochs": 4}


def _pile() -> ImageSet:
    """Thirty images of each known class that were never learned, and sixty of each new one."""
    old, new = digits(KNOWN, 140, 170), digits(NEW, 0, 60)
    return ImageSet.from_arrays(
        torch.cat([old.images, new.images])[:, 0].numpy(),
        [
            *(images.class_names[label] for images in (old, new) for label in _labels(images)),
        ],
    )


def _labels(images: ImageSet) -> list[int]:
    assert images.labels is not None
    return [int(label) for label in images.labels]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, News]:
    run, news = tmp_path_factory.mktemp("pile") / "run.inlay", News()
    Learner("resnet8", settings=SETTINGS, run=run, progress=news).fit(digits(KNOWN, 0, 140), held_out=0.25)
    return run, news


@pytest.fixture
def learner(fitted: tuple[Path, News], tmp_path: Path) -> Learner:
    return inlay.load(inlay.load(fitted[0]).save(tmp_path / "run.inlay"))


def _calibration(learner: Learner) -> Calibration:
    calibration = learner._history.calibration
    assert calibration is not None
    return calibration


def test_held_out_images_are_not_learned_but_measured(fitted: tuple[Path, News], learner: Learner) -> None:
    assert [entry.size for entry in learner.classes] == [105] * 4
    calibration = _calibration(learner)
    assert len(calibration.known_scores) == 140
    assert calibration.accuracy > 0.9
    assert any("kept out of training" in note for note in fitted[1].notes)


def test_a_pile_is_sorted_counted_and_learned(learner: Learner, tmp_path: Path) -> None:
    pile = _pile()
    stage = learner.discover(pile.without_labels())
    assert stage is not None and stage.found is not None
    found = stage.found
    assert found["known"] + found["new"] + found["neither"] == found["pile"] == len(pile)
    assert stage.images == found["new"]
    assert len(stage.class_names) == found["classes"]["estimate"]
    assert found["classes"]["low"] <= found["classes"]["estimate"] <= found["classes"]["high"]
    assert abs(found["forgetting"]["drop"]) < 1
    _check_artefacts(learner, pile, found, tmp_path)
    # Images of known classes that slipped through do not keep the clusters from being matched.
    scores = learner.evaluate(digits([*KNOWN, *NEW], 100, 140), match=pile)
    assert scores.matched_on == "train"
    assert scores.old is not None and scores.old > 0.7
    again = learner.discover(pile.without_labels())
    assert again == stage and len(learner.stages) == 2


def _check_artefacts(learner: Learner, pile: ImageSet, found: Mapping[str, Any], folder: Path) -> None:
    """Look at what the stage leaves for people."""
    images = learner.clusters(images=pile.without_labels())
    assert [image.path for image in images] == list(pile.names)
    assert Counter(image.verdict for image in images) == Counter(
        {verdict: found[verdict] for verdict in ("known", "new", "neither") if found[verdict]}
    )
    best = learner.predict(pile.without_labels())
    for image, prediction in zip(images, best, strict=True):
        if image.verdict == "known":
            assert image.class_id == prediction.id
            assert image.confidence == pytest.approx(prediction.probability)
        assert (image.class_id is None) == (image.verdict == "neither")
    page = learner.report(folder / "report.html", images=pile.without_labels()).read_text()
    count = found["classes"]
    assert f"About {count['estimate']}, between {count['low']} and {count['high']}." in page
    assert f"Of {found['pile']:,} images only the new ones were learned." in page
    points = round(-100 * found["forgetting"]["drop"], 1) + 0
    assert f"{points:+.1f}</strong><small>points of accuracy, estimated" in page
    assert "Score of each number of classes" in page


def test_nothing_new_is_no_stage(learner: Learner) -> None:
    assert learner.discover(digits(KNOWN, 140, 177).without_labels()) is None
    assert len(learner.stages) == 1


def test_all_new_learns_every_image(learner: Learner) -> None:
    stage = learner.discover(digits(NEW, 0, 40).without_labels(), 2, all_new=True)
    assert stage is not None and stage.found is not None
    assert stage.images == 80
    assert stage.found.keys() == {"forgetting"}
    assert -1 < stage.found["forgetting"]["drop"] < 1


def test_a_stage_that_forgets_too_much_is_refused(learner: Learner) -> None:
    before = learner.knowledge.logits(digits(KNOWN))
    with pytest.raises(InlayError, match=r"not accepted.*--max-forgetting"):
        learner.discover(digits(NEW, 0, 40).without_labels(), 2, all_new=True, max_forgetting=-1.0)
    assert len(learner.stages) == 1
    assert torch.equal(learner.knowledge.logits(digits(KNOWN)), before)
    accepted = learner.discover(digits(NEW, 0, 40).without_labels(), 2, all_new=True, max_forgetting=1.0)
    assert accepted is not None and accepted.found is not None
    assert accepted.found.keys() == {"forgetting"}


def test_forgetting_is_left_out_where_a_method_has_no_joint_head(tmp_path: Path) -> None:
    fitted = Learner("resnet8", settings=quick("dtc"), run=tmp_path / "run.inlay")
    fitted.fit(digits(KNOWN, 0, 140), held_out=0.25)
    all_new = inlay.load(fitted.save(tmp_path / "all-new.inlay"))
    pile = _pile().without_labels()
    with pytest.raises(InlayError, match=r"'dtc' trains no joint head.*--max-forgetting"):
        fitted.discover(pile, 2, max_forgetting=0.5)
    assert len(fitted.stages) == 1
    stage = fitted.discover(pile, 2)
    assert stage is not None and stage.found is not None
    assert "new" in stage.found and "forgetting" not in stage.found
    stage = all_new.discover(digits(NEW, 0, 40).without_labels(), 2, all_new=True)
    assert stage is not None and stage.found is None


def test_a_run_without_held_out_images_cannot_sort() -> None:
    learner = Learner("resnet8", settings=QUICK)
    learner.fit(digits(KNOWN))
    with pytest.raises(InlayError, match="--held-out"):
        learner.discover(digits(NEW).without_labels(), all_new=False)
    stage = learner.discover(digits(NEW).without_labels())
    assert stage is not None and stage.found is not None
    assert stage.images == 80


def test_a_self_test_hides_classes_and_finds_them(tmp_path: Path) -> None:
    news = News()
    learner = Learner("resnet8", settings=QUICK, run=tmp_path / "run.inlay", progress=news)
    learner.fit(digits(KNOWN, 0, 120), held_out=0.25, self_test=True)
    (trial,) = _calibration(learner).trials
    assert len(trial.hidden) == 2 and set(trial.hidden) < set(KNOWN)
    assert any(note.startswith("Self-test: ") for note in news.notes)
    assert _calibration(inlay.load(tmp_path / "run.inlay")) == _calibration(learner)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"held_out": 0.25}, "too few images to keep"), ({"held_out": 0.5, "self_test": True}, "for a self-test")],
)
def test_too_few_images_are_said(options: dict[str, float], sentence: str) -> None:
    news = News()
    Learner("resnet8", settings=QUICK, progress=news).fit(digits(["0", "1"], 0, 30), **options)  # type: ignore[arg-type]
    assert any(sentence in note for note in news.notes)


def test_a_share_out_of_range_is_refused() -> None:
    with pytest.raises(InlayError, match="at least 0 and below 1"):
        Learner("resnet8", settings=QUICK).fit(digits(KNOWN), held_out=1.0)


def test_a_stopped_self_test_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "run.inlay"
    monkeypatch.setattr("inlay.learner.calibrated", stopped)
    with pytest.raises(KeyboardInterrupt):
        Learner("resnet8", settings=QUICK, run=run).fit(digits(KNOWN), held_out=0.2)
    monkeypatch.undo()
    learner = Learner("resnet8", settings=QUICK, run=run)
    learner.fit(digits(KNOWN), held_out=0.2)
    assert len(_calibration(learner).known_scores) == 32


def test_a_rehearsal_knows_a_base_stage_with_held_out_images(fitted: tuple[Path, News]) -> None:
    news = News()
    learner = Learner("resnet8", settings=SETTINGS, run=fitted[0], progress=news)
    learner.rehearse_fit(digits(KNOWN, 0, 140), held_out=0.25)
    assert "The base stage is finished already; fit would do nothing." in news.notes
