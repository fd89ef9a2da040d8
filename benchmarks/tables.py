"""Write the tables of the README from the files under benchmarks/results: python benchmarks/tables.py [--check]."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- demo table: made by benchmarks/tables.py -->", "<!-- end of demo table -->"

COLUMNS = {
    "Old": "old",
    "New": "new",
    "All": "all",
    "New among new": "new_head",
    "k-means on pixels": "kmeans_pixels",
    "k-means on base features": "kmeans_features",
    "Old, fine-tuned without memory": "forgetful_old",
    "All, supervised": "supervised_all",
}


def main() -> None:
    """Write the tables, or with --check say whether they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a table is not up to date")
    readme = ROOT / "README.md"
    before = readme.read_text(encoding="utf-8")
    after = with_table(before, json.loads((ROOT / "benchmarks/results/demo.json").read_text(encoding="utf-8")))
    if parser.parse_args().check:
        sys.exit(before != after)
    readme.write_text(after, encoding="utf-8")


def with_table(text: str, results: dict[str, Any]) -> str:
    """Return a page with the table of the demonstration between its marks replaced."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{demo_table(results)}\n{END}{tail}"


def demo_table(results: dict[str, Any]) -> str:
    """Return the demonstration's accuracies in percent, mean ± standard deviation over the seeds, as Markdown."""
    rows = [["after", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    for stage in results["stages"]:
        rows.append([stage["name"], *(_percent(stage.get(key)) for key in COLUMNS.values())])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    stages, seeds = results["stages"], results["seeds"]
    learning = [sum(stage["seconds"]["values"][run] for stage in stages) for run in range(len(seeds))]
    return (
        f"{table}\n\n"
        f"Test accuracy in %, mean ± standard deviation over {len(seeds)} seeds (class split and initialisation both "
        f"vary). Base and two stages take {min(learning):.0f} to {max(learning):.0f} s, with all baselines "
        f"{min(results['seconds']):.0f} to {max(results['seconds']):.0f} s, on {results['hardware']}, torch "
        f"{results['versions']['torch']}. Command: `{results['command']}`; every number is in "
        f"[benchmarks/results/demo.json](benchmarks/results/demo.json)."
    )


def _percent(number: dict[str, Any] | None) -> str:
    return "–" if number is None else f"{100 * number['mean']:.1f} ± {100 * number['std']:.1f}"


if __name__ == "__main__":
    main()
