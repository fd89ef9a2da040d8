import os
import signal
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import inlay
from inlay import Learner
from inlay.data import ImageSet
from inlay.engine.progress import QuietProgress
from inlay.errors import InlayError, Interrupted
from inlay.piles import calibrated, sort_pile
from tiny_digits import News, digits
from tiny_runs import BASE, FIRST, SECOND, SEEN, base_learner, contents, fresh, reopened, same_weights

THIRD = ["7", "8"]
FEW = 5


class Stopping(News):
    """Presses Ctrl-C when it is first told of a step."""

    def step(self, done: int, losses: Mapping[str, float]) -> None:
        if not self.losses:
            os.kill(os.getpid(), signal.SIGINT)
        super().step(done, losses)


@pytest.fixture(scope="module")
def alternating(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, News]:
    """A run that discovered, was taught five images of each of two classes, and discovered again."""
    folder = tmp_path_factory.mktemp("alternating") / "run"
    learner, news = reopened(base_learner(), folder)
    learner.discover(digits(FIRST).without_labels(), classes=2)
    learner.learn(digits(SECOND, last=FEW))
    learner.discover(digits(THIRD).without_labels(), classes=2)
    return folder, news


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was taught two classes and then discovered two."""
    folder = tmp_path_factory.mktemp("taught") / "run"
    learner, _ = reopened(base_learner(), folder)
    learner.learn(digits(FIRST))
    learner.discover(digits(SECOND).without_labels(), classes=2)
    return folder


def _opened(folder: Path, stage: int | None = None) -> Learner:
    return inlay.load(folder, stage=stage, device="cpu")


def _joined(*parts: ImageSet) -> ImageSet:
    names = tuple(name for part in parts for name in part.class_names)
    labels, start = [], 0
    for part in parts:
        assert part.labels is not None
        labels.append(part.labels + start)
        start += len(part.class_names)
    pixels = torch.cat([part.images for part in parts])
    return ImageSet(pixels, tuple(f"image {i}" for i in range(len(pixels))), torch.cat(labels), names)


def test_discover_and_learn_take_turns(alternating: tuple[Path, News]) -> None:
    learner = _opened(alternating[0])
    assert [record.kind for record in learner.stages] == ["base", "novel", "labelled", "novel"]
    assert learner.classes.names == (*BASE, "new-1.1", "new-1.2", *SECOND, "new-3.1", "new-3.2")
    kinds = [entry.kind for entry in learner.classes]
    assert kinds == [*["labelled"] * 3, *["discovered"] * 2, *["labelled"] * 2, *["discovered"] * 2]
    assert [entry.size for entry in learner.classes.of_stage(2)] == [FEW, FEW]
    assert {found.name for found in learner.predict(fresh(SEEN))} <= set(learner.classes.names)


def test_the_network_does_not_grow(alternating: tuple[Path, News]) -> None:
    merges = [record.merge for record in _opened(alternating[0]).stages[1:]]
    sizes = {merge[name] for merge in merges if merge for name in ("parameters_before", "parameters_after")}
    assert None not in merges and len(sizes) == 1


def test_a_taught_class_is_recognised_from_five_images(alternating: tuple[Path, News]) -> None:
    found = _opened(alternating[0], stage=2).predict(fresh(SECOND))
    right = [prediction.name == name for prediction, name in zip(found, ["5"] * 20 + ["6"] * 20, strict=True)]
    # Seven classes: chance is a seventh.
    assert sum(right) / len(right) > 0.5
    assert not any(prediction.discovered for prediction in found if prediction.name in SECOND)


def test_scores_match_discovered_classes_alone(alternating: tuple[Path, News]) -> None:
    learner = _opened(alternating[0])
    scores = learner.evaluate(fresh([*SEEN, *THIRD]), match=_joined(digits(FIRST), digits(THIRD)))
    assert scores.matched_on == "train" and set(scores.groups) == {"base", "stage1", "stage2", "stage3"}
    named = [found.name for found in learner.predict(fresh(SECOND))]
    right = [name == truth for name, truth in zip(named, ["5"] * 20 + ["6"] * 20, strict=True)]
    assert scores.groups["stage2"] == pytest.approx(sum(right) / len(right))
    assert set(learner.matched_names(1)) == set(FIRST) and set(learner.matched_names(3)) == set(THIRD)


def test_without_images_to_match_the_given_names_stand(taught: Path) -> None:
    scores = _opened(taught).evaluate(fresh([*BASE, *FIRST, *SECOND]))
    assert scores.matched_on == "test"
    named = [found.name for found in _opened(taught).predict(fresh(FIRST))]
    right = [name == truth for name, truth in zip(named, ["3"] * 20 + ["4"] * 20, strict=True)]
    assert scores.groups["stage1"] == pytest.approx(sum(right) / len(right))


def test_scores_of_given_classes_need_no_matching(taught: Path) -> None:
    scores = _opened(taught, stage=1).evaluate(fresh([*BASE, *FIRST]))
    assert scores.matched_on is None and scores.counts == {"old": 60, "new": 40, "all": 100}


def test_what_is_forgotten_is_written_down(alternating: tuple[Path, News]) -> None:
    found = _opened(alternating[0]).stages[2].found
    assert found is not None and -1 < found["forgetting"]["drop"] < 1 and "pile" not in found
    assert any(note.startswith("Accuracy on the old classes falls by about") for note in alternating[1].notes)


def test_rollback_takes_a_taught_stage_back(alternating: tuple[Path, News], tmp_path: Path) -> None:
    learner, _ = reopened(_opened(alternating[0]), tmp_path / "run")
    assert [record.kind for record in learner.rollback(1)] == ["labelled", "novel"]
    assert learner.classes.names == (*BASE, "new-1.1", "new-1.2")
    learner.learn(digits(SECOND, last=FEW))
    assert same_weights(learner, _opened(alternating[0], stage=2))


def test_the_same_images_are_learned_once(alternating: tuple[Path, News], tmp_path: Path) -> None:
    learner, news = reopened(_opened(alternating[0]), tmp_path / "run")
    before = contents(tmp_path / "run")
    assert learner.learn(digits(SECOND, last=FEW)).index == 2
    assert news.notes[-1] == "These images were learned in stage 2 already; nothing was done."
    assert contents(tmp_path / "run") == before


def test_a_stopped_stage_goes_on_to_the_same_weights(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inlay.engine.loop._SECONDS_BETWEEN_READINGS", 0.0)
    base_learner().save(tmp_path / "run")
    stopped = inlay.load(tmp_path / "run", device="cpu", progress=Stopping())
    with pytest.raises(Interrupted, match="Stopped stage 1 at step 2 of 8"):
        stopped.learn(digits(FIRST))
    with pytest.raises(InlayError, match="holds unfinished work with other images or settings"):
        _opened(tmp_path / "run").discover(digits(FIRST).without_labels(), classes=2)
    news = News()
    again = inlay.load(tmp_path / "run", device="cpu", progress=news)
    again.learn(digits(FIRST))
    assert "Going on with stage 1 at step 2 of 8." in news.notes
    assert same_weights(again, _opened(taught, stage=1))


def test_images_that_are_kept_out_measure_the_stage(tmp_path: Path) -> None:
    learner, news = reopened(base_learner(), tmp_path / "run")
    record = learner.learn(digits(FIRST), held_out=0.5)
    assert record.images == 40 and record.found is not None
    assert record.found["held_out"]["images"] == 40 and 0 <= record.found["held_out"]["accuracy"] <= 1
    assert any(note.startswith("Accuracy on the 40 images that were kept out of training: ") for note in news.notes)


def test_too_few_images_are_all_learned(tmp_path: Path) -> None:
    learner, news = reopened(base_learner(), tmp_path / "run")
    record = learner.learn(digits(FIRST, last=10), held_out=0.1)
    assert record.images == 20 and record.found is not None and "held_out" not in record.found
    assert "There are too few images to keep 10 % of each class out of training: all are learned." in news.notes


def test_images_of_taught_classes_look_known_in_a_pile(taught: Path) -> None:
    knowledge = _opened(taught, stage=1).knowledge
    held_out, known = digits(BASE, 40, 60), base_learner().knowledge
    assert held_out.labels is not None
    calibration = calibrated(known, known.features(held_out), held_out.labels, 0.05)
    pile = sort_pile(knowledge, knowledge.features(_joined(fresh(FIRST), fresh(SECOND))), calibration, 0.05)
    known, new = pile.scores.view(2, 40).median(dim=1).values.tolist()
    assert known < new and pile.known[:40].double().mean() > 0.8


def test_too_much_forgetting_changes_nothing(tmp_path: Path) -> None:
    learner, _ = reopened(base_learner(), tmp_path / "run")
    before = contents(tmp_path / "run")
    learner.settings = learner.settings.changed(
        {"classifier.refit": False, "classifier.decision": "linear", "training.epochs": 6}
    )
    with pytest.raises(InlayError, match="The stage was not accepted, as accuracy on the old classes would fall"):
        learner.learn(digits(FIRST), max_forgetting=0.0)
    assert contents(tmp_path / "run") == before and len(learner.stages) == 1


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (
            digits(["2", "3"], last=5),
            "learn is for new classes, and this run has a class '2' already; leave",
        ),
        (digits(FIRST).without_labels(), "learn needs labels; give a folder with one sub-folder per class."),
        (digits(FIRST, last=1), "learn needs more than one image of a class; give more images."),
        (digits(FIRST).select(torch.arange(40)), "learn needs images of each class, but there are none of '4'"),
    ],
)
def test_images_that_cannot_be_learned_are_refused(images: ImageSet, said: str, tmp_path: Path) -> None:
    learner, _ = reopened(base_learner(), tmp_path / "run")
    before = contents(tmp_path / "run")
    for attempt in (learner.learn, learner.rehearse_learn):
        with pytest.raises(InlayError) as refusal:
            attempt(images)
        assert str(refusal.value).startswith(said)
    assert contents(tmp_path / "run") == before


def test_other_statistics_than_those_of_the_run_are_refused(tmp_path: Path) -> None:
    learner, _ = reopened(base_learner(), tmp_path / "run")
    learner.settings = learner.settings.changed({"replay.statistics": "shared"})
    with pytest.raises(InlayError, match=r"set replay\.statistics=full"):
        learner.learn(digits(FIRST))


def test_a_class_that_was_found_and_taught_cannot_be_scored(tmp_path: Path) -> None:
    learner, _ = reopened(base_learner(), tmp_path / "run")
    learner.discover(digits(FIRST).without_labels(), classes=2)
    learner.evaluate(fresh([*BASE, *FIRST]), match=digits(FIRST))
    learner.learn(digits(["4", "5"], last=FEW))
    with pytest.raises(InlayError, match=r"class of stage 1 and one of stage 2 both stand for '4'.*back to stage 1"):
        learner.evaluate(fresh([*BASE, *FIRST]))


def test_a_rehearsal_writes_nothing(tmp_path: Path) -> None:
    learner, _ = reopened(base_learner(), tmp_path / "run")
    before = contents(tmp_path / "run")
    rehearsal = learner.rehearse_learn(digits(FIRST, last=FEW))
    assert (rehearsal.kind, rehearsal.stage, rehearsal.classes, rehearsal.images) == ("labelled", 1, 2, 2 * FEW)
    assert contents(tmp_path / "run") == before and len(learner.stages) == 1


def test_a_taught_stage_can_be_reviewed(taught: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    from inlay.review.server.session import open_session

    learner, _ = reopened(_opened(taught), tmp_path / "run")
    learner.rollback(1)
    archive = tmp_path / "stage.npz"
    np.savez(archive, images=digits(FIRST).images[:, 0].numpy())
    with open_session(tmp_path / "run", str(archive), torch.device("cpu"), QuietProgress()) as session:
        session.decide({"decision": "rename", "id": 3, "name": "three"}, 0)
        with pytest.raises(InlayError, match=r"Class 4 \(4\) came with labels and cannot be rejected"):
            session.decide({"decision": "reject", "id": 4}, 1)
        assert [len(members) for members in session.members.values()] == [40, 40]
    assert _opened(tmp_path / "run").classes.names == (*BASE, "three", "4")
