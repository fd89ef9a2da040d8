"""Run the demonstration over five seeds, check what it claims, and write benchmarks/results/demo.json.

    python benchmarks/demo.py [--seeds 0 1 2 3 4]

Class split and initialisation vary with the seed. Exits with 1 unless, in each discovery stage, `new_head` is above
both k-means baselines on the mean and in all seeds but one, and Old is above that of fine-tuning without memory.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from inlay.bench.records import commit_of
from inlay.demo import run_demo
from inlay.review.results import StageResults

RESULTS = Path(__file__).parent / "results" / "demo.json"

_SEEDS = [0, 1, 2, 3, 4]

Number = Callable[[StageResults], float | None]

NUMBERS: dict[str, Number] = {
    "old": lambda stage: stage["metrics"]["old"],
    "new": lambda stage: stage["metrics"]["new"],
    "all": lambda stage: stage["metrics"]["all"],
    "new_head": lambda stage: stage["metrics"]["new_head"],
    "old_head": lambda stage: stage["metrics"]["old_head"],
    "seconds": lambda stage: stage["seconds"],
    "kmeans_pixels": lambda stage: _baseline(stage, "kmeans_pixels", "new_head"),
    "kmeans_features": lambda stage: _baseline(stage, "kmeans_features", "new_head"),
    "forgetful_old": lambda stage: _baseline(stage, "forgetful", "old"),
    "forgetful_new": lambda stage: _baseline(stage, "forgetful", "new"),
    "forgetful_all": lambda stage: _baseline(stage, "forgetful", "all"),
    "supervised_old": lambda stage: _baseline(stage, "supervised", "old"),
    "supervised_new": lambda stage: _baseline(stage, "supervised", "new"),
    "supervised_all": lambda stage: _baseline(stage, "supervised", "all"),
    "max_abs_diff": lambda stage: None if stage["merge"] is None else stage["merge"]["max_abs_diff"],
}


def main() -> None:
    """Run, summarise, write, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=_SEEDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    commit = commit_of(Path(__file__).parent)
    runs = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            results = run_demo(Path(folder), seed).results
        runs.append(results)
        print(f"seed {seed}: {results['seconds']:.0f} s", flush=True)
    summary = [_summary([run["stages"][position] for run in runs]) for position in range(len(runs[0]["stages"]))]
    failures = [text for position in range(1, len(summary)) for text in _failures(runs, position)]
    options.out.write_text(
        json.dumps(_record(commit, options.seeds, runs, summary, failures), indent=1) + "\n", encoding="utf-8"
    )
    for text in failures:
        print(f"FAILED: {text}", file=sys.stderr)
    sys.exit(1 if failures else 0)


def _baseline(stage: StageResults, name: str, key: str) -> float | None:
    baselines: dict[str, Any] = dict(stage.get("baselines") or {})
    return (baselines.get(name) or {}).get(key)


def _summary(stages: list[StageResults]) -> dict[str, Any]:
    """Mean, sample standard deviation and every value of each number of one stage."""
    summary: dict[str, Any] = {"name": stages[0]["name"]}
    for name, number in NUMBERS.items():
        values = [value for stage in stages if (value := number(stage)) is not None]
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            summary[name] = {"mean": statistics.fmean(values), "std": spread, "values": values}
    return summary


def _failures(runs: list[Any], position: int) -> list[str]:
    stages: list[StageResults] = [run["stages"][position] for run in runs]

    def values(name: str) -> list[float]:
        return [value for stage in stages if (value := NUMBERS[name](stage)) is not None]

    rivals = {"new_head": ("kmeans_pixels", "kmeans_features"), "old": ("forgetful_old",)}
    failures = []
    for ours, others in rivals.items():
        for other in others:
            won = sum(mine > theirs for mine, theirs in zip(values(ours), values(other), strict=True))
            means = statistics.fmean(values(ours)), statistics.fmean(values(other))
            if means[0] <= means[1] or won < len(stages) - 1:
                failures.append(
                    f"{stages[0]['name']}: {ours} {means[0]:.3f} against {other} {means[1]:.3f}, "
                    f"above it in {won} of {len(stages)}"
                )
    return failures


def _record(commit: str, seeds: list[int], runs: list[Any], summary: list[Any], failures: list[str]) -> dict[str, Any]:
    return {
        # Without --out: where a machine puts its files is nobody's business.
        "command": "python benchmarks/demo.py" + ("" if seeds == _SEEDS else f" --seeds {' '.join(map(str, seeds))}"),
        "commit": commit,
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{os.cpu_count()} CPU cores, {platform.machine()}, {torch.get_num_threads()} threads",
        "versions": runs[0]["versions"],
        "seeds": seeds,
        "seconds": [run["seconds"] for run in runs],
        "stages": summary,
        "failures": failures,
        "runs": runs,
    }


if __name__ == "__main__":
    main()
