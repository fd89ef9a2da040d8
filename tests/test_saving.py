from pathlib import Path

import pytest
import torch

import inlay
from inlay.errors import InlayError
from inlay.run_folder import RunFolder
from inlay.saving import save_run
from tiny_digits import digits
from tiny_runs import BASE, FIRST, SECOND, SEEN, contents, fresh, quick_learner, same_weights, two_stages

Stage = tuple[dict[str, torch.Tensor], dict[str, object]]


def _stages(*identities: str) -> list[Stage]:
    return [
        ({"weight": torch.full((2,), float(index))}, {"stage": {"identity": identity}})
        for index, identity in enumerate(identities)
    ]


def test_a_run_is_written_whole(tmp_path: Path) -> None:
    folder = save_run(tmp_path / "run", _stages("a", "b"))
    assert folder.stage_count == 2 and folder.read(1)[0]["weight"].tolist() == [1, 1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_what_a_killed_save_left_is_replaced(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / ".run.saving")
    assert save_run(tmp_path / "run", _stages("a")).stage_count == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_an_unfinished_save_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("inlay.saving.os.rename", fail)
    with pytest.raises(InlayError, match="disk is full"):
        save_run(tmp_path / "run", _stages("a", "b"))
    assert not RunFolder.exists(tmp_path / "run")


def test_missing_stages_are_added(tmp_path: Path) -> None:
    save_run(tmp_path / "run", _stages("a"))
    assert save_run(tmp_path / "run", _stages("a", "b", "c")).stage_count == 3


@pytest.mark.parametrize("others", [("x",), ("a", "x", "c")])
def test_another_run_is_not_touched(tmp_path: Path, others: tuple[str, ...]) -> None:
    save_run(tmp_path / "run", _stages(*others))
    before = contents(tmp_path / "run")
    with pytest.raises(InlayError, match="already holds a run"):
        save_run(tmp_path / "run", _stages("a", "b", "c"))
    assert contents(tmp_path / "run") == before


def test_a_learner_saves_again_after_another_stage(tmp_path: Path) -> None:
    learner = quick_learner()
    learner.fit(digits(BASE))
    learner.save(tmp_path / "run")
    learner.discover(digits(FIRST), classes=2)
    learner.evaluate(fresh([*BASE, *FIRST]), match=digits(FIRST))
    loaded = inlay.load(learner.save(tmp_path / "run"), device="cpu")
    assert len(loaded.stages) == 2 and same_weights(loaded, learner)
    assert loaded.matched_names(1) == learner.matched_names(1)


def test_a_script_that_is_run_again_takes_up_its_finished_stages(tmp_path: Path) -> None:
    two_stages().save(tmp_path / "run")
    before = contents(tmp_path / "run")
    learner = quick_learner(run=tmp_path / "run")
    learner.fit(digits(BASE))
    assert len(learner.classes) == 3
    learner.discover(digits(FIRST), classes=2)
    assert len(learner.classes) == 5
    record = learner.discover(digits(SECOND), classes=2)
    assert record is not None and record.index == 2 and same_weights(learner, two_stages())
    assert contents(tmp_path / "run") == before


def test_a_repeated_discovery_changes_nothing(tmp_path: Path) -> None:
    two_stages().save(tmp_path / "run")
    before = contents(tmp_path / "run")
    learner = inlay.load(tmp_path / "run", device="cpu")
    stage = learner.discover(digits(SECOND), classes=2)
    assert stage is not None and stage.index == 2
    assert len(learner.classes) == len(SEEN) and contents(tmp_path / "run") == before


def test_part_of_the_images_is_not_enough_for_a_matching(tmp_path: Path) -> None:
    learner = inlay.load(two_stages().save(tmp_path / "run"), device="cpu")
    part = digits(FIRST).select(range(10))
    with pytest.raises(InlayError, match="unlabelled images of stage 1 are not among the images given for matching"):
        learner.evaluate(fresh(SEEN), match=part)
