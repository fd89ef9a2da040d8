"""Write the tables of docs/branches.md from benchmarks/results/branches-*.json.

python -m benchmarks.branch_tables [--check]
"""

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import between, measured_files, write_page

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "branches.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- branch tables: made by benchmarks/branch_tables.py -->", "<!-- end of branch tables -->"
NOTHING = "–"
_LORA_NOTE = (
    "on those of the same layers that it takes; two branches is the hybrid with gate imm, frozen and never merged"
)
# What the groups of networks.py are called.
TITLES = {
    "small": "Small networks, as tested in CI,",
    "full": "Networks of their usual size",
    "gpu": "torchvision and timm",
}


def main() -> None:
    """Write the tables, or with --check say whether they are up to date."""
    write_page(__doc__, PAGE, lambda text: with_tables(text, measured_files(RESULTS, "branches")))


def with_tables(text: str, results: Mapping[str, Any]) -> str:
    """Return a page with everything between the marks replaced by the tables of each file."""
    return between(text, BEGIN, END, [section(measured, name) for name, measured in results.items()])


def section(measured: Mapping[str, Any], file: str) -> str:
    """Return heading, tables and conditions of one file as Markdown."""
    networks = [found for found in measured["networks"] if found["error"] is None]
    group = re.search(r"--networks (\S+)", measured["command"])
    title = TITLES.get(group[1] if group else "", "Networks")
    parts = [f"### {title} on {measured['hardware']}"]
    if networks:
        parts.append(_table([branch_row(found) for found in networks]))
    if any(map(_has_lora, networks)):
        parts.append(_table([lora_row(found) for found in networks]))
    failed = [found for found in measured["networks"] if found["error"] is not None]
    parts += [f"Not measured: {found['name']}, {_cell(found['error'])}" for found in failed]
    return "\n\n".join([*parts, conditions(measured, networks, file)])


def branch_row(found: Mapping[str, Any]) -> dict[str, str]:
    """Return what branches do to one network, by column."""
    plans, errors = found["plan"], found["merge_error"]
    added = Counter(plans["all"]["branched"]) - Counter(plans["default"]["branched"])
    branched = _kinds(plans["default"]["branched"])
    row = {
        "network": _name(found),
        "branched": branched if found["targets"] == "default" else 'none, measured with `kinds="all"`',
        'added by `kinds="all"`': _kinds(added),
        "refused": _reasons(plans["default"]["refused"]),
        "merge error, float32 / float64": " / ".join(_error(errors[precision]) for precision in ("float32", "float64")),
        "stock weights load": "yes" if found["stock"]["loads"] else f"no: {_cell(found['stock']['why'])}",
        "training step": _ratio(found, "training", "hybrid"),
        "forward folded": _ratio(found, "forward", "folded"),
        "forward with branches": _ratio(found, "forward", "hybrid"),
        "forward merged": _ratio(found, "forward", "merged"),
    }
    if found["peak_memory"]:
        row["memory of a step"] = f"{found['peak_memory']['hybrid'] / found['peak_memory']['original']:.2f}"
    return row


def lora_row(found: Mapping[str, Any]) -> dict[str, str]:
    """Return LoRA and an unmerged network of two branches beside ours, by column."""
    units = sum(found["plan"][found["targets"]]["branched"].values())
    refused, note = _reasons(found["lora"]["refused"]), found["lora"]["note"]
    return {
        "network": _name(found),
        "layers with LoRA": f"{found['lora']['layers']} of {units}",
        "refused by PEFT": f"{refused}; the network then fails: {_cell(note)}" if note else refused,
        "trained, ours / LoRA": f"{found['trainable']['hybrid']:,} / {_count(found['trainable'].get('LoRA'))}",
        "training step, ours / LoRA": _ratios(found, ("training", "hybrid"), ("training", "LoRA")),
        "forward unmerged, two branches / LoRA": _ratios(found, ("forward", "two branches"), ("forward", "LoRA")),
        "forward merged, ours / LoRA": _ratios(found, ("forward", "merged"), ("forward", "LoRA merged")),
    }


def conditions(measured: Mapping[str, Any], networks: Sequence[Mapping[str, Any]], file: str) -> str:
    """Say how the numbers of a file were measured, and how much the times scatter."""
    series = [found[kind][name] for found in networks for kind in ("forward", "training") for name in found[kind]]
    scatter = [100 * times["spread"] / times["median"] for times in series] or [0.0]
    runs = sorted({found["runs"] for found in networks}) or [0]
    precision, versions = measured["precision"], measured["versions"]
    rank = next((found["lora"]["rank"] for found in networks if _has_lora(found)), None)
    lora = "" if rank is None else f" LoRA is that of PEFT {versions['peft']} with rank {rank}, {_LORA_NOTE}."
    return (
        f"Times are relative to those of the original network, all of which is trained: medians of "
        f"{_range(runs)} interleaved runs of {measured['batch']} images, forward in {precision['forward']}, training "
        f"in {precision['training']}. The interquartile range is {statistics.median(scatter):.0f} % of the median "
        f"in the middle and {max(scatter):.0f} % at most. The merge error, max |Δ| / max(1, max |output|), is taken "
        f"after training steps that move weights and statistics.{lora} "
        f"torch {versions['torch']}, {measured['date']}. Command: `{measured['command']}`; every number is in "
        f"[benchmarks/results/{file}](../benchmarks/results/{file})."
    )


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([row[column] for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _name(found: Mapping[str, Any]) -> str:
    return f"{found['name']}, {'×'.join(str(side) for side in found['image'][1:])}"


def _kinds(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or NOTHING


def _reasons(counts: Mapping[str, int]) -> str:
    """Return reasons without the name of the error, and of each what is wrong, not what to do about it."""
    shortened = Counter[str]()
    for reason, count in counts.items():
        sentences = re.sub(r"^\w+Error: ", "", reason).split("; ")[0].split(". ")
        shortened[". ".join(sentences[:2]).rstrip(".!")] += count
    return "; ".join(f"{count}: {_cell(reason)}" for reason, count in shortened.items()) or NOTHING


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _error(size: float) -> str:
    return f"{size:.0e}" if size else "0"


def _count(number: int | None) -> str:
    return NOTHING if number is None else f"{number:,}"


def _ratio(found: Mapping[str, Any], kind: str, name: str) -> str:
    times = found[kind]
    return f"{times[name]['median'] / times['original']['median']:.2f}" if name in times else NOTHING


def _ratios(found: Mapping[str, Any], *wanted: tuple[str, str]) -> str:
    return " / ".join(_ratio(found, kind, name) for kind, name in wanted)


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _has_lora(found: Mapping[str, Any]) -> bool:
    return found["lora"]["layers"] is not None


if __name__ == "__main__":
    main()
