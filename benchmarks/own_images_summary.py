"""Write the summary at the end of docs/own-images.md from benchmarks/results/own-images/*.json.

python -m benchmarks.own_images_summary [--check]
"""

import statistics
from pathlib import Path
from typing import Any

from benchmarks.page import between, measured_files, write_page

__all__ = ["BEGIN", "END", "FOLDER", "PAGE", "summary"]

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "own-images.md"
FOLDER = ROOT / "benchmarks" / "results" / "own-images"
BEGIN, END = "<!-- summary: made by benchmarks/own_images_summary.py -->", "<!-- end of summary -->"

_DATA_SETS = {
    "demo": "digits, 5 known + 5 new",
    "photographs-10": "CIFAR-10, 5 known + 5 new",
    "photographs-100": "CIFAR-100, 80 known + 20 new",
}
_HEADS = [
    "images",
    "no new class there, and none found",
    "count within 20 %",
    "interval covers",
    "new images found",
    "known ones taken for something else",
    "forgetting within 3 points",
]
_POINTS = 0.03
_SHARE = 0.2

Run = dict[str, Any]


def main() -> None:
    """Write the summary, or with --check say whether it is up to date."""
    write_page(__doc__, PAGE, lambda text: between(text, BEGIN, END, [summary(FOLDER)]))


def summary(folder: Path) -> str:
    """Return a table with a line for each data set that was counted.

    Args:
        folder: Folder of the files of results.
    """
    runs = {
        part: {name: record["runs"] for name, record in measured_files(folder, part).items()}
        for part in ("count", "triage", "forgetting")
    }
    rows = [_HEADS, ["---"] * len(_HEADS)]
    for data_set, title in _DATA_SETS.items():
        counted, sorted_out, forgot = (runs[part].get(f"{part}-{data_set}.json", []) for part in runs)
        if counted:
            rows.append([title, *_counts(counted), *_triage(sorted_out), _forgetting(forgot)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _counts(runs: list[Run]) -> list[str]:
    piles = [pile for run in runs for pile in run["piles"]]
    empty = [pile["estimate"] == 0 for pile in piles if pile["truth"] == 0]
    full = [pile for pile in piles if pile["truth"] > 0]
    near = [abs(pile["estimate"] - pile["truth"]) <= _SHARE * pile["truth"] for pile in full]
    covered = [pile["low"] <= pile["truth"] <= pile["high"] for pile in full]
    return [_share(empty), _share(near), _share(covered)]


def _triage(runs: list[Run]) -> list[str]:
    return [_percent([run[key] for run in runs]) for key in ("new_found", "known_error")]


def _forgetting(runs: list[Run]) -> str:
    return _share([abs(run["estimate"] - run["truth"]) <= _POINTS for run in runs])


def _share(held: list[bool]) -> str:
    return f"{sum(held)} of {len(held)}" if held else "–"


def _percent(values: list[float]) -> str:
    if not values:
        return "–"
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.fmean(values):.0f} ± {100 * spread:.0f} %"


if __name__ == "__main__":
    main()
