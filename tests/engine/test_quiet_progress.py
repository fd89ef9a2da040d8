import logging

import pytest

from inlay.engine.progress import Progress, QuietProgress


def test_quiet_progress_logs_notes_and_shows_nothing(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    progress: Progress = QuietProgress()
    with caplog.at_level(logging.INFO, logger="inlay"):
        progress.start("work", 10, 3)
        progress.note("Two images were left out.")
        progress.step(4, {"total": 1.0})
        progress.finish()
    assert [(record.name, record.getMessage()) for record in caplog.records] == [("inlay", "Two images were left out.")]
    assert capsys.readouterr() == ("", "")


def test_beginning_is_logged_for_who_looks_closely(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="inlay"):
        QuietProgress().start("stage 1", 10, 3)
    assert [record.getMessage() for record in caplog.records] == ["stage 1: step 3 of 10"]
