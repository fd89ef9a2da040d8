import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import inlay
from inlay import Learner
from inlay.errors import InlayError
from inlay.evaluation.truths import StageTruths
from inlay.history import drop_stages
from inlay.run_folder import RunFolder
from tiny_digits import digits
from tiny_runs import BASE, FIRST, SECOND, SEEN, contents, fresh, quick_learner, reopened, same_weights, two_stages

FORK = multiprocessing.get_context("fork")
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}


@pytest.fixture(scope="module")
def matched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two stages that were both matched; only to be copied."""
    run = tmp_path_factory.mktemp("matched") / "run"
    learner, _ = reopened(two_stages(), run)
    learner.evaluate(fresh(SEEN), digits([*FIRST, *SECOND]))
    return run


@pytest.fixture
def run(matched: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(matched, tmp_path / "run"))


def _load(run: Path, **options: Any) -> Learner:
    return inlay.load(run, device="cpu", **options)


def test_rollback_is_the_earlier_stage_and_keeps_the_run_as_it_was(run: Path) -> None:
    learner, latest, earlier, before = _load(run), _load(run), _load(run, stage=1), contents(run)
    dropped = learner.rollback(1)
    assert [record.index for record in dropped] == [2]
    assert dropped[0].class_names == ("new-2.1", "new-2.2")
    for found in (learner, _load(run)):
        assert same_weights(found, earlier)
        assert [record.index for record in found.stages] == [0, 1]
        assert found.classes == earlier.classes
        assert found.settings == earlier.settings
    assert contents(run / "dropped" / "001") == before
    assert same_weights(_load(run / "dropped" / "001"), latest)
    assert sorted(entry.name for entry in (run / "stages").iterdir()) == ["000-base", "001-novel"]


def test_a_dropped_stage_can_be_learned_again(run: Path) -> None:
    learner, latest = _load(run), _load(run)
    learner.rollback(1)
    learner.discover(digits(SECOND).without_labels(), classes=2)
    assert same_weights(_load(run), latest)
    learner.rollback(0)
    assert len(_load(run).stages) == 1
    assert [len(_load(run / "dropped" / number).stages) for number in ("001", "002")] == [3, 3]


def test_rollback_to_the_latest_stage_changes_nothing(run: Path) -> None:
    learner, before = _load(run), contents(run)
    assert learner.rollback(2) == ()
    assert contents(run) == before and not (run / "dropped").exists()


@pytest.mark.parametrize("stage", [-1, 3])
def test_no_such_stage(run: Path, stage: int) -> None:
    learner, before = _load(run), contents(run)
    for attempt in (learner, two_stages()):
        with pytest.raises(
            InlayError, match=rf"There is no stage {stage} to go back to; write a number from 0 to 2\.$"
        ):
            attempt.rollback(stage)
    assert contents(run) == before


def test_in_memory() -> None:
    learner = quick_learner()
    with pytest.raises(InlayError, match="Nothing was learned yet"):
        learner.rollback(0)
    learner.fit(digits(BASE))
    base = learner.knowledge
    learner.discover(digits(FIRST).without_labels(), classes=2)
    learner.evaluate(fresh([*BASE, *FIRST]), digits(FIRST))
    assert [record.index for record in learner.rollback(0)] == [1]
    assert learner.knowledge is base and len(learner.stages) == 1
    learner.discover(digits(SECOND).without_labels(), classes=2)
    with pytest.raises(InlayError, match="Stage 1 was not matched yet"):
        learner.matched_names(1)


def test_matchings_of_dropped_stages_are_forgotten(run: Path) -> None:
    learner, first = _load(run), _load(run).matched_names(1)
    learner.rollback(1)
    learner.discover(digits(FIRST, 40, 60).without_labels(), classes=2)
    for found in (learner, _load(run)):
        assert found.matched_names(1) == first
        with pytest.raises(InlayError, match="Stage 2 was not matched yet"):
            found.matched_names(2)


def test_progress_of_a_stopped_stage_is_dropped(run: Path) -> None:
    stopped = RunFolder.open(run).progress_path("training.safetensors")
    stopped.write_text("x")
    _load(run).rollback(1)
    assert not list(stopped.parent.iterdir())
    assert (run / "dropped" / "001" / "progress" / stopped.name).read_text() == "x"


def test_a_learner_of_dropped_stages_is_told(run: Path) -> None:
    stale, other = _load(run), _load(run)
    other.rollback(0)
    with pytest.raises(InlayError, match=r"run was rolled back by another process; load it anew\.$"):
        stale.discover(digits(["7", "8"]).without_labels(), classes=2)
    other.discover(digits(SECOND).without_labels(), classes=2)
    other.discover(digits(FIRST).without_labels(), classes=2)
    with pytest.raises(InlayError, match="was rolled back by another process"):
        stale.discover(digits(["7", "8"]).without_labels(), classes=2)


def test_another_process_is_writing(run: Path) -> None:
    learner, before = _load(run), contents(run)
    with RunFolder.open(run).lock(), pytest.raises(InlayError, match=r"^Another inlay process is writing to"):
        learner.rollback(0)
    assert contents(run) == before and len(learner.stages) == 3


def test_damaged_stages(run: Path) -> None:
    """A damaged later stage can be dropped; a damaged earlier one is nothing to go back to."""
    for stage in ("002-novel", "000-base"):
        (run / "stages" / stage / "tensors.safetensors").write_bytes(b"damaged")
    learner, before = _load(run, stage=1), contents(run)
    with pytest.raises(InlayError, match="was changed after it was written"):
        learner.rollback(0)
    assert contents(run) == before
    assert len(learner.rollback(1)) == 1
    assert len(_load(run).stages) == 2


def _drop_until(number: int, path: Path) -> None:
    """Drop the last stage, but die right before the n-th change to the file system."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    drop_stages(RunFolder.open(path), 1)


def test_rollback_killed_anywhere_is_before_or_after(run: Path, tmp_path: Path) -> None:
    RunFolder.open(run).progress_path("training.safetensors").write_text("x")
    whole, code = contents(run), -signal.SIGKILL
    counts: list[int] = []
    while code == -signal.SIGKILL:
        path = Path(shutil.copytree(run, tmp_path / str(len(counts))))
        process = FORK.Process(target=_drop_until, args=(len(counts) + 1, path))
        process.start()
        process.join()
        code = process.exitcode or 0
        found = RunFolder.open(path)
        counts.append(found.stage_count)
        matched = [1, 2] if counts[-1] == 3 else [1]
        assert list(StageTruths(found).upto(9)) == matched
        assert [found.read_facts(index)["stage"]["index"] for index in range(counts[-1])] == list(range(counts[-1]))
        kept = (
            [] if not (path / "dropped").exists() else [e for e in (path / "dropped").iterdir() if e.name.isdecimal()]
        )
        assert all(contents(entry) == whole for entry in kept)
        assert kept or counts[-1] == 3
        drop_stages(found, 1)
        assert found.stage_count == 2 and list(StageTruths(found).upto(9)) == [1]
        assert {entry.name for entry in (path / "stages").iterdir()} == {"000-base", "001-novel"}
    assert code == 0
    assert counts == sorted(counts, reverse=True) and counts[0] == 3 and counts[-2:] == [2, 2]
