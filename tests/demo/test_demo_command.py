import json
import sys
from pathlib import Path

import pytest

from inlay.cli import main
from inlay.review import validate_results


def _demo(monkeypatch: pytest.MonkeyPatch, *options: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["inlay", "demo", *options])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


def test_command_shows_the_table_and_what_it_wrote(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    assert _demo(monkeypatch, "--no-baselines", "--seed", "4") == 0
    lines = capsys.readouterr().out.splitlines()
    folder = Path("runs") / "demo-2"
    assert lines[-3:] == [
        f"Report: {folder / 'report.html'}",
        f"Results: {folder / 'results.json'}",
        str(folder / "run.inlay"),
    ]
    assert [line.split("(")[0].strip() for line in lines if "classes)" in line] == ["base", "stage 1", "stage 2"]
    results = json.loads((folder / "results.json").read_text())
    validate_results(results)
    assert results["command"] == "inlay demo --no-baselines --seed 4"
    assert results["seed"] == 4
