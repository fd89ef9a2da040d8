"""The table of docs/speed.md that compares the accuracy of the fast path with that of eager float32.

It is made from benchmarks/results/cifar10/cifar10-engine-eager-seed*.json and cifar10-engine-fast-seed*.json, which
benchmarks/cifar10.py writes under the names `engine-eager` and `engine-fast`.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["path_section"]

WAYS = {"engine-eager": "eager, float32", "engine-fast": "CUDA graph, bfloat16"}
SCORES = {
    "base stage": lambda run: run["base_metrics"]["all"],
    "Old": lambda run: run["metrics"]["old"],
    "New": lambda run: run["metrics"]["new"],
    "All": lambda run: run["metrics"]["all"],
}


def path_section(folder: Path) -> list[str]:
    """Return the section as Markdown in a list, or an empty list where one of the two ways has no finished run.

    Args:
        folder: Folder of the results of all benchmarks.
    """
    runs = {name: _finished(folder / "cifar10", name) for name in WAYS}
    if not all(runs.values()):
        return []
    rows = [_row(WAYS[name], found) for name, found in runs.items()]
    eager, fast = runs.values()
    rows.append(["*fast less eager*", *(f"{_mean(fast, score) - _mean(eager, score):+.2f}" for score in SCORES)])
    header = ["way", *SCORES]
    table = "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])
    first = fast[0]
    told = (
        f"CIFAR-10, five base classes and five new ones, preset `{first['preset']}` with short schedules; accuracy in "
        f"%, mean ± standard deviation over {len(eager)} and {len(fast)} seeds. {first['hardware']}, {first['date']}, "
        f"commit {first['commit'][:12]}. Command of one run: `{first['command']}`; every number is in "
        f"[benchmarks/results/cifar10](../benchmarks/results/cifar10)."
    )
    return [f"### The fast path against eager float32\n\n{table}\n\n{told}"]


def _finished(folder: Path, name: str) -> list[Mapping[str, Any]]:
    files = sorted(folder.glob(f"cifar10-{name}-seed*.json"))
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    return [run for run in runs if run["metrics"]["all"] is not None]


def _row(way: str, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    spreads = {name: statistics.stdev(_values(runs, name)) if len(runs) > 1 else 0.0 for name in SCORES}
    return [way, *(f"{_mean(runs, name):.2f} ± {spreads[name]:.2f}" for name in SCORES)]


def _mean(runs: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.mean(_values(runs, name))


def _values(runs: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [100 * float(SCORES[name](run)) for run in runs]
