from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import inlay as library
from inlay.decided import keep_decisions
from inlay.decisions import Decision, Merge, Reject, replay
from inlay.run_folder import RunFolder

Inlay = Callable[..., CompletedProcess[str]]
Refused = Callable[..., str]


def test_rollback_says_what_was_dropped(inlay: Inlay, discovered: Path, pictures: Path) -> None:
    said = inlay("rollback", discovered, "--to", 0)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.splitlines() == [
        "Dropped stage 1: 3 classes (new-1.1, new-1.2, new-1.3).",
        f"4 classes are left; the run as it was is kept in {discovered / 'dropped'}.",
        str(discovered),
    ]
    assert len(library.load(discovered).classes) == 4
    assert len(library.load(discovered / "dropped" / "001").classes) == 7
    again = inlay("discover", discovered, pictures / "flat", "--classes", 2)
    assert again.returncode == 0
    assert len(library.load(discovered).classes) == 6


def test_classes_that_were_merged_or_rejected_are_not_counted(inlay: Inlay, discovered: Path, pictures: Path) -> None:
    known = library.load(discovered).knowledge
    taken: list[Decision] = [Merge((4,), 5), Reject(6)]
    keep_decisions(RunFolder.open(discovered), known, taken, replay(known, taken))
    said = inlay("discover", discovered, pictures / "base", "--classes", 2)
    assert "; 7 classes in all." in said.stdout, "four of the base stage, one of the first stage and two"
    assert inlay("rollback", discovered, "--to", 1).stdout.splitlines()[1].startswith("5 classes are left; ")


def test_reports_of_dropped_stages_are_named(inlay: Inlay, discovered: Path) -> None:
    report = discovered.with_name(f"{discovered.name}.stage-1.html")
    report.write_text("a report")
    said = inlay("rollback", discovered, "--to", 0)
    assert said.stdout.splitlines()[2] == (
        f"{report.name} shows a stage that was dropped; delete it, or keep it for your records."
    )
    assert report.exists()


def test_one_dropped_class_is_counted_as_one(inlay: Inlay, fitted: Path, pictures: Path) -> None:
    assert inlay("discover", fitted, pictures / "flat", "--classes", 1).returncode == 0
    assert inlay("rollback", fitted, "--to", 0).stdout.splitlines()[0] == "Dropped stage 1: 1 class (new-1.1)."


def test_rollback_to_the_latest_stage(inlay: Inlay, discovered: Path, content: Callable[[Path], object]) -> None:
    inlay("info", discovered)
    before = content(discovered)
    said = inlay("rollback", discovered, "--to", 1)
    assert said.returncode == 0
    assert said.stdout.splitlines() == ["Stage 1 is the latest one already; nothing was changed.", str(discovered)]
    assert content(discovered) == before


@pytest.mark.parametrize("stage", [-1, 2])
def test_no_such_stage(refused: Refused, discovered: Path, stage: int) -> None:
    assert "write a number from 0 to 1." in refused(discovered, "rollback", discovered, "--to", stage)


def test_another_process_is_writing(refused: Refused, discovered: Path) -> None:
    with RunFolder.open(discovered).lock():
        sentence = refused(discovered, "rollback", discovered, "--to", 0)
    assert sentence == f"Another inlay process is writing to {discovered}; wait for it to end, or stop it."
