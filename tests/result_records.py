"""Records of runs of Table 1, made up for tests of the page, and the page's tables read back."""

from typing import Any

from benchmarks.results_runs import FIRST

__all__ = ["metrics", "record", "rows"]


def metrics(old: float | None, new: float | None, **more: Any) -> dict[str, Any]:
    every = None if old is None or new is None else (old + new) / 2
    return {"old": old, "new": new, "all": every, "groups": {}, "new_head": None, "old_head": None} | more


def record(method: str = "adm", seed: int = 0, **more: Any) -> dict[str, Any]:
    dataset = more.get("dataset", "cifar10")
    return {
        "method": method,
        "name": None,
        "dataset": dataset,
        "seed": seed,
        "split": FIRST,
        "steps": 1,
        "base": "reference",
        "base_recipe": "60 epochs",
        "schedule": "30 epochs",
        "settings": {},
        "metrics": metrics(0.8, 0.5),
        "base_metrics": metrics(0.9, None, all=0.9),
        "stages": [],
        "calibrated": None,
        "released": None,
        "parameters": 1000,
        "stored_bytes": 4000,
        "seconds": {"base": 10.0, "stages": [20.0]},
        "hardware": "a GPU",
        "commit": "0123456789abcdef-dirty",
        "command": f"inlay bench table1 --data ROOT --methods {method} --datasets {dataset} --seeds {seed}",
        "date": "2030-01-01",
    } | more


def rows(section: str) -> list[dict[str, str]]:
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    columns, _, *cells = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(columns, line, strict=True)) for line in cells]
