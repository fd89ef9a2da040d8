import json
from pathlib import Path
from typing import Any

from benchmarks.path_tables import path_section


def _run(base: float, old: float | None, new: float | None, everything: float | None) -> dict[str, Any]:
    return {
        "preset": "inlay",
        "hardware": "GPU",
        "date": "2030-01-01",
        "commit": "0123456789abcdef",
        "command": "python benchmarks/cifar10.py",
        "base_metrics": {"all": base},
        "metrics": {"old": old, "new": new, "all": everything},
    }


def _write(folder: Path, name: str, runs: list[dict[str, Any]]) -> None:
    (folder / "cifar10").mkdir(exist_ok=True)
    for seed, run in enumerate(runs):
        (folder / "cifar10" / f"cifar10-{name}-seed{seed}.json").write_text(json.dumps(run), encoding="utf-8")


def test_means_spreads_and_differences_are_shown(tmp_path: Path) -> None:
    _write(tmp_path, "engine-eager", [_run(0.9, 0.8, 0.7, 0.75), _run(0.92, 0.84, 0.7, 0.77)])
    _write(tmp_path, "engine-fast", [_run(0.91, 0.83, 0.71, 0.77), _run(0.93, 0.83, 0.71, 0.77)])
    (text,) = path_section(tmp_path)
    assert "| eager, float32 | 91.00 ± 1.41 | 82.00 ± 2.83 | 70.00 ± 0.00 | 76.00 ± 1.41 |" in text
    assert "| *fast less eager* | +1.00 | +1.00 | +1.00 | +1.00 |" in text
    assert "over 2 and 2 seeds" in text and "commit 0123456789ab." in text


def test_unfinished_runs_are_left_out(tmp_path: Path) -> None:
    _write(tmp_path, "engine-eager", [_run(0.9, 0.8, 0.7, 0.75)])
    _write(tmp_path, "engine-fast", [_run(0.91, None, None, None)])
    assert path_section(tmp_path) == []
    _write(tmp_path, "engine-fast", [_run(0.91, None, None, None), _run(0.91, 0.8, 0.7, 0.75)])
    assert "over 1 and 1 seeds" in path_section(tmp_path)[0]
