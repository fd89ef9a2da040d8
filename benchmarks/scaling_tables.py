"""Write the section "Scaling" of docs/speed.md from benchmarks/results/scaling-*.json.

python -m benchmarks.scaling_tables [--check]
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import between, linked, measured_files, write_page

__all__ = ["BEGIN", "END", "PAGE", "RESULTS", "processes_table", "section", "summary", "with_tables"]

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "speed.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- scaling tables: made by benchmarks/scaling_tables.py -->", "<!-- end of scaling tables -->"
NOTHING = "–"
SCORES = ("old", "new", "all")
RATES = {"base_images_per_s": "base stage, images/s", "discovery_images_per_s": "discovery stage, images/s"}


def main() -> None:
    """Write the tables, or with --check say whether they are up to date."""
    write_page(__doc__, PAGE, lambda text: with_tables(text, measured_files(RESULTS, "scaling")))


def with_tables(text: str, results: Mapping[str, Any]) -> str:
    """Return a page with everything between the marks replaced by the tables of each file."""
    return between(text, BEGIN, END, [section(measured, name) for name, measured in results.items()])


def section(measured: Mapping[str, Any], file: str) -> str:
    """Return heading, tables and conditions of one file as Markdown."""
    return f"### Scaling on {measured['hardware']}\n\n{summary(measured)}; {linked(file)}"


def summary(measured: Mapping[str, Any]) -> str:
    """Return all tables of one run with its conditions."""
    parts = [_sweep(found) for part in ("images", "classes") for found in measured[part] or ()]
    parts += [_stages(measured["stages"])] if measured["stages"] else []
    parts += [_processes(measured)] if measured["processes"] else []
    return "\n\n".join([*parts, _conditions(measured)])


def _sweep(found: Mapping[str, Any]) -> str:
    """Return a line for each count, and how stage and parts grow."""
    rows, growth = found["rows"], found["growth"]
    parts = [part for part in rows[-1]["parts"] if any(row["parts"][part] > 0 for row in rows)]
    lines = [
        {found["what"]: f"{row['n']:,}", **_times(row, parts), "bytes per class": f"{row['bytes_per_class']:,}"}
        for row in rows
    ]
    for name, key, form in (
        ("*exponent*", "exponent", "{:.2f}"),
        ("*last exponent*", "last_exponent", "{:.2f}"),
        ("*off a line*", "departure", "{:.0%}"),
    ):
        shown = {part: form.format(growth[part][key]) if part in growth else NOTHING for part in ("stage", *parts)}
        lines.append(
            {found["what"]: name, **{f"{part}, s": value for part, value in shown.items()}, "bytes per class": ""}
        )
    return f"**{found['what'].capitalize()}**, {found['settings']}:\n\n{_table(lines)}"


def _stages(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each stage of a row of stages."""
    parts = [part for part in rows[-1]["parts"] if any(row["parts"][part] > 0 for row in rows[1:])]
    lines = [
        {
            "after stage": str(row["n"]),
            "classes": str(row["classes"]),
            "parameters of the network": f"{row['parameters']:,}",
            "of the head": f"{row['head_parameters']:,}",
            "forward, ms": f"{1000 * row['forward_seconds']:.2f}",
            **(_times(row, parts) if "seconds" in row else {f"{part}, s": NOTHING for part in ("stage", *parts)}),
        }
        for row in rows
    ]
    return f"**Stages in a row**:\n\n{_table(lines)}"


def _processes(measured: Mapping[str, Any]) -> str:
    ways, (base, stage, test) = measured["processes"], measured["scored_images"]
    return (
        f"**Processes**: scores in %, mean ± standard deviation over seeds "
        f"{', '.join(map(str, measured['seeds']['scores']))}, on scikit-learn's digits in float32 ({base} labelled and "
        f"{stage} unlabelled training images, {measured['scored_epochs']} epochs each, {test} test images):\n\n"
        f"{processes_table(ways)}"
    )


def processes_table(ways: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each way to train, and one that compares the last two."""
    lines = [
        {
            "way": way["way"],
            "processes × threads": f"{way['processes']} × {way['threads']}",
            **{title: f"{way[key]:,.0f}" for key, title in RATES.items()},
            **{name.capitalize(): _spread([run[name] for run in way["runs"]]) for name in SCORES},
        }
        for way in ways
    ]
    first, second = ways[-2:]
    last = {
        "way": "*the last against the one before*",
        "processes × threads": "",
        **{title: f"{second[key] / first[key]:.2f}×" for key, title in RATES.items()},
        **{name.capitalize(): f"{100 * (_mean(second, name) - _mean(first, name)):+.1f}" for name in SCORES},
    }
    return _table([*lines, last])


def _conditions(measured: Mapping[str, Any]) -> str:
    commit, dash, state = measured["commit"].partition("-")
    size = f"{measured['side']}×{measured['side']}"
    threads = "one thread but for processes" if measured["device"] == "cpu" else "images and networks on the GPU"
    return (
        f"{measured['network']}, grey images of {size}, epochs: {measured['epochs']}, batch {measured['batch']}, "
        f"{threads}; where they are not varied, {measured['old_classes']} old classes before the first stage, "
        f"{measured['new_classes']} new ones and {measured['stage_images']:,} images; {measured['refit_per_class']} "
        f"samples per class in the refit, {measured['refit_samples']:,} at most. Load average {_load(measured)}. "
        f"torch {measured['versions']['torch']}, {measured['date']}, commit {commit[:12]}{dash}{state}. Command: "
        f"`{measured['command']}`"
    )


def _load(measured: Mapping[str, Any]) -> str:
    start, end = measured["load_average_at_the_start"], measured["load_average_at_the_end"]
    return f"{start:.1f} at the start" + ("" if end is None else f", {end:.1f} at the end")


def _times(row: Mapping[str, Any], parts: Sequence[str]) -> dict[str, str]:
    return {"stage, s": f"{row['seconds']:.2f}", **{f"{part}, s": f"{row['parts'][part]:.2f}" for part in parts}}


def _mean(way: Mapping[str, Any], name: str) -> float:
    return float(statistics.mean(run[name] for run in way["runs"]))


def _spread(values: Sequence[float]) -> str:
    if not values:
        return NOTHING
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):.1f} ± {100 * deviation:.1f}"


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([row[column] for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
