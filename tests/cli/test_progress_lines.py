import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Inlay = Callable[..., CompletedProcess[str]]


def test_without_a_terminal_progress_is_lines_with_the_time_left(
    inlay: Inlay, fitted: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inlay.cli.progress._SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr("inlay.engine.loop._SECONDS_BETWEEN_READINGS", 0.0)
    said = inlay("discover", fitted, pictures / "flat", "--classes", 3)
    pattern = re.compile(r"stage 1: step (\d+) of 6, (\d+) s left; total -?[\d.e+-]+( \w+ -?[\d.e+-]+)+")
    steps = [match for line in said.stdout.splitlines() if (match := pattern.fullmatch(line))]
    assert [int(match[1]) for match in steps] == [1, 2, 3, 4, 5, 6]
    assert int(steps[-1][2]) == 0
    assert "\x1b" not in said.stdout + said.stderr
    assert "\r" not in said.stdout + said.stderr


def test_lines_come_now_and_then(inlay: Inlay, fitted: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inlay.cli.progress._SECONDS_BETWEEN_LINES", 3600.0)
    monkeypatch.setattr("inlay.engine.loop._SECONDS_BETWEEN_READINGS", 0.0)
    assert "step" not in inlay("discover", fitted, pictures / "flat", "--classes", 3).stdout
