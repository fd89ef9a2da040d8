import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_shows_the_measured_numbers(tables: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    results = json.loads((ROOT / "benchmarks/results/demo.json").read_text(encoding="utf-8"))
    assert tables.with_table(readme, results) == readme


def test_the_demonstration_held_what_it_claims() -> None:
    results = json.loads((ROOT / "benchmarks/results/demo.json").read_text(encoding="utf-8"))
    assert results["failures"] == [] and len(results["seeds"]) == 5


def test_a_row_has_mean_and_spread_in_percent(tables: ModuleType) -> None:
    numbers: dict[str, Any] = {"old": {"mean": 0.5, "std": 0.0125}, "seconds": {"values": [1.0, 2.0]}}
    results = {
        "stages": [{"name": "base", **numbers}],
        "seeds": [0, 1],
        "seconds": [3.0, 4.0],
        "hardware": "2 CPU cores",
        "versions": {"torch": "2"},
        "command": "python benchmarks/demo.py",
    }
    lines = tables.demo_table(results).splitlines()
    assert lines[2].startswith("| base | 50.0 ± 1.2 | – |")
    assert "take 1 to 2 s, with all baselines 3 to 4 s, on 2 CPU cores" in lines[-1]
