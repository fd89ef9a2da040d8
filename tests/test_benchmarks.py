import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "demo.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_demo", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _stage(
    new_head: float, old: float, pixels: float = 0.5, features: float = 0.5, forgetful: float = 0.5
) -> dict[str, Any]:
    return {
        "name": "stage 1",
        "kind": "novel",
        "classes": ["7", "8", "9"],
        "metrics": {"old": old, "new": 0.6, "all": 0.7, "new_head": new_head, "old_head": 0.9},
        "merge": {"max_abs_diff": 1e-6, "parameters_before": 5, "parameters_hybrid": 9, "parameters_after": 5},
        "baselines": {
            "kmeans_pixels": {"new_head": pixels},
            "kmeans_features": {"new_head": features, "base": "own"},
            "forgetful": {"old": forgetful, "new": 0.4, "all": 0.3},
            "supervised": {"old": 0.9, "new": 0.9, "all": 0.9},
        },
        "seconds": 3.0,
    }


def _base_stage() -> dict[str, Any]:
    metrics = {"old": 0.9, "new": None, "all": 0.9, "new_head": None, "old_head": 0.9}
    return {"name": "base", "kind": "base", "classes": ["1"], "metrics": metrics, "merge": None, "seconds": 1.0}


def _runs(stages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"stages": [_base_stage(), stage], "versions": {"inlay": "0"}, "seconds": 4.0} for stage in stages]


def _failures(benchmark: ModuleType, stages: Sequence[dict[str, Any]]) -> list[str]:
    failures: list[str] = benchmark._failures(_runs(stages), 1)
    return failures


def test_winning_everywhere_passes(benchmark: ModuleType) -> None:
    assert _failures(benchmark, [_stage(0.8, 0.8)] * 5) == []


def test_one_seed_may_be_lost(benchmark: ModuleType) -> None:
    lost = _stage(0.4, 0.4)
    assert _failures(benchmark, [_stage(0.8, 0.8)] * 4 + [lost]) == []


def test_a_higher_mean_with_two_seeds_lost_fails(benchmark: ModuleType) -> None:
    """Means: (3 * 0.9 + 2 * 0.4) / 5 = 0.7 against 0.5."""
    failures = _failures(benchmark, [_stage(0.9, 0.8)] * 3 + [_stage(0.4, 0.8)] * 2)
    assert failures == [
        "stage 1: new_head 0.700 against kmeans_pixels 0.500, above it in 3 of 5",
        "stage 1: new_head 0.700 against kmeans_features 0.500, above it in 3 of 5",
    ]


def test_a_lower_mean_with_one_seed_lost_fails(benchmark: ModuleType) -> None:
    """Means: (4 * 0.52 + 0.02) / 5 = 0.42 against 0.5."""
    failures = _failures(benchmark, [_stage(0.52, 0.8)] * 4 + [_stage(0.02, 0.8)])
    assert failures == [
        "stage 1: new_head 0.420 against kmeans_pixels 0.500, above it in 4 of 5",
        "stage 1: new_head 0.420 against kmeans_features 0.500, above it in 4 of 5",
    ]


def test_each_baseline_is_judged_on_its_own(benchmark: ModuleType) -> None:
    failures = _failures(benchmark, [_stage(0.8, 0.8, pixels=0.9)] * 5)
    assert failures == ["stage 1: new_head 0.800 against kmeans_pixels 0.900, above it in 0 of 5"]
    failures = _failures(benchmark, [_stage(0.8, 0.8, features=0.9)] * 5)
    assert failures == ["stage 1: new_head 0.800 against kmeans_features 0.900, above it in 0 of 5"]


def test_forgetting_more_than_fine_tuning_fails(benchmark: ModuleType) -> None:
    failures = _failures(benchmark, [_stage(0.8, 0.3)] * 5)
    assert failures == ["stage 1: old 0.300 against forgetful_old 0.500, above it in 0 of 5"]


def test_a_tie_fails(benchmark: ModuleType) -> None:
    failures = _failures(benchmark, [_stage(0.8, 0.5)] * 5)
    assert failures == ["stage 1: old 0.500 against forgetful_old 0.500, above it in 0 of 5"]


def test_summary_holds_mean_sample_deviation_and_values(benchmark: ModuleType) -> None:
    """0.5, 0.7 and 0.9 have the mean 0.7 and the sample variance (0.04 + 0 + 0.04) / 2."""
    summary = benchmark._summary([_stage(value, 0.8) for value in (0.5, 0.7, 0.9)])
    assert summary["name"] == "stage 1"
    assert summary["new_head"] == {
        "mean": pytest.approx(0.7),
        "std": pytest.approx(0.2),
        "values": [0.5, 0.7, 0.9],
    }
    assert summary["forgetful_old"]["values"] == [0.5, 0.5, 0.5]
    assert summary["supervised_all"]["mean"] == pytest.approx(0.9)
    assert summary["max_abs_diff"]["mean"] == pytest.approx(1e-6)


def test_summary_leaves_out_what_a_stage_does_not_have(benchmark: ModuleType) -> None:
    summary = benchmark._summary([_base_stage()])
    assert summary.keys() == {"name", "old", "all", "old_head", "seconds"}
    assert summary["old"] == {"mean": 0.9, "std": 0.0, "values": [0.9]}


@pytest.mark.parametrize(("old", "code"), [(0.8, 0), (0.2, 1)])
def test_script_runs_every_seed_writes_and_judges(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: float, code: int
) -> None:
    seeds = []

    class Outcome:
        results = _runs([_stage(0.8, old)])[0]

    def run_demo(folder: Path, seed: int) -> Outcome:
        seeds.append(seed)
        return Outcome()

    out = tmp_path / "demo.json"
    monkeypatch.setattr(benchmark, "run_demo", run_demo)
    monkeypatch.setattr(sys, "argv", ["benchmarks/demo.py", "--seeds", "3", "5", "--out", str(out)])
    with pytest.raises(SystemExit) as stop:
        benchmark.main()
    assert stop.value.code == code
    assert seeds == [3, 5]
    record = json.loads(out.read_text())
    assert record["seeds"] == [3, 5]
    assert len(record["failures"]) == code
    assert [stage["name"] for stage in record["stages"]] == ["base", "stage 1"]
    assert len(record["runs"]) == 2
