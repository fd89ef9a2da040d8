"""Write the tables of docs/speed.md from benchmarks/results/speed-*.json and streaming-*.json.

python -m benchmarks.speed_tables [--check]
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import between, linked, measured_files, write_page
from benchmarks.path_tables import path_section

__all__ = ["BEGIN", "END", "PAGE", "RESULTS", "section", "sections", "summary", "training_table", "with_tables"]

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "speed.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- speed tables: made by benchmarks/speed_tables.py -->", "<!-- end of speed tables -->"
NOTHING = "–"
KINDS = {"base": "base stage", "adm": "ADM novel stage"}
MODES = {
    "plain": "plain way",
    "eager-float32": "eager, float32",
    "eager-bfloat16": "eager, bfloat16",
    "graph": "CUDA graph",
    "compile": "compiled, CUDA graph",
}
HEADLINE = {
    "base_512": "base stage, batch 512, images/s",
    "base_128": "base stage, batch 128, images/s",
    "adm_256": "ADM novel stage, batch 256, images/s",
    "base_to_target_s": "base stage of CIFAR-10, s",
    "ratio_to_plain": "smallest ratio to the plain way",
}


def main() -> None:
    """Write the tables, or with --check say whether they are up to date."""
    write_page(__doc__, PAGE, lambda text: with_tables(text, sections(RESULTS)))


def sections(folder: Path) -> list[str]:
    """Return the section of each file of results in a folder."""
    speed = [section(measured, name) for name, measured in measured_files(folder, "speed").items()]
    streaming = [streaming_section(measured, name) for name, measured in measured_files(folder, "streaming").items()]
    return [*speed, *path_section(folder), *streaming]


def with_tables(text: str, parts: Sequence[str]) -> str:
    """Return a page with everything between the marks replaced by sections."""
    return between(text, BEGIN, END, parts)


def section(measured: Mapping[str, Any], file: str) -> str:
    """Return heading, tables and conditions of one file of benchmarks/speed.py as Markdown."""
    return f"### {measured['network']} on {measured['hardware']}\n\n{summary(measured)}; {linked(file)}"


def streaming_section(measured: Mapping[str, Any], file: str) -> str:
    """Return heading, table and conditions of one file of benchmarks/streaming.py as Markdown."""
    channels, height, width = measured["image"]
    table = [
        {
            "images from": {"folder": "a folder of JPEG files", "shards": "WebDataset shards"}[line["form"]],
            "images/s": _number(line["images_per_s"]),
            "waiting for data": f"{100 * line['waiting_s'] / line['training_s']:.1f} %",
            "pass that checks the files, s": _number(line["checking_s"]),
            "peak memory of the process, MB": _number(line["peak_mb"]),
        }
        for line in measured["rows"]
    ]
    told = (
        f"{measured['images']:,} images of {width}×{height} with {channels} channels, "
        f"{measured['decoded_bytes'] / 1e9:.1f} GB when decoded, learned for one epoch by streaming in batches of "
        f"{measured['batch']}, with a ResNet-8 behind a 4×4 mean. torch {measured['versions']['torch']}, "
        f"{measured['date']}, commit {_short(measured['commit'])}. Command: `{measured['command']}`; {linked(file)}"
    )
    return f"### Streaming on {measured['hardware']}\n\n{_table(table)}\n\n{told}"


def summary(measured: Mapping[str, Any]) -> str:
    """Return all tables of one run with its conditions."""
    parts = [headline_table(measured["headline"]), training_table(measured["rows"])]
    parts += [kernel_table(measured["rows"])]
    failed = [line for line in measured["rows"] if line["error"] is not None]
    parts += [f"Not measured: {_work(line)}, {_mode(line)}: {_sentence(line['error'])}" for line in failed]
    parts += [inference_sentence(measured), target_sentence(measured["base_to_target"])]
    parts += [measured.get("note", ""), _conditions(measured)]
    return "\n\n".join(part for part in parts if part)


def headline_table(headline: Mapping[str, float | None]) -> str:
    """Return the figures that sum everything up."""
    shown = {
        name: _number(headline[name], 1 if name in ("base_to_target_s", "ratio_to_plain") else 0) for name in HEADLINE
    }
    return _table([{title: shown[name] for name, title in HEADLINE.items()}])


def training_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each kind of work and each way to do it."""
    plain = {_work(line): line["images_per_s"] for line in rows if line["mode"] == "plain" and line["error"] is None}
    measured = [line for line in rows if line["error"] is None]
    return _table([_training_row(line, plain.get(_work(line))) for line in measured]) if measured else ""


def _training_row(line: Mapping[str, Any], plain: float | None) -> dict[str, str]:
    share, memory = line["share_of_matmul"], line["peak_memory"]
    return {
        "work": _work(line),
        "way": _mode(line),
        "images/s": _number(line["images_per_s"]),
        "to plain": NOTHING if plain is None else f"{line['images_per_s'] / plain:.1f}×",
        "TFLOP/s": _number(line["tflops"], 1),
        "of matmul": NOTHING if share is None else f"{100 * share:.1f} %",
        "waiting for data": f"{100 * line['waiting_s'] / line['seconds']:.1f} %",
        "compile and warm-up, s": _number(line["warm_up_s"], 1),
        "peak memory, GB": NOTHING if memory is None else f"{memory / 1e9:.2f}",
    }


def kernel_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the steps of each kind of work consist of, for the rows whose kernels were watched."""
    watched = [line for line in rows if line.get("kernels_ms")]
    groups = list(dict.fromkeys(group for line in watched for group in line["kernels_ms"]))
    table = [
        {"kernels, ms per step": group}
        | {_work(line): _number(line["kernels_ms"].get(group, 0.0), 2) for line in watched}
        for group in groups
    ]
    return _table(table) if table else ""


def inference_sentence(measured: Mapping[str, Any]) -> str:
    """Say how fast features and predictions are."""
    found = measured["inference"]
    if found is None:
        return ""
    return (
        f"Evaluation: {_number(found['evaluation_images_per_s'])} images/s through the folded network. Prediction: "
        f"{_number(found['prediction_images_per_s'])} images/s from arrays in host memory to named classes; one image "
        f"takes {found['latency_ms']:.2f} ms."
    )


def target_sentence(found: Mapping[str, Any] | None) -> str:
    """Say what the base stage on CIFAR-10 reaches in what time."""
    if found is None:
        return ""
    accuracies = [100 * accuracy for accuracy in found["accuracies"]]
    return (
        f"Base stage of CIFAR-10 ({found['schedule']}), seeds {', '.join(map(str, found['seeds']))}: "
        f"{statistics.mean(accuracies):.2f} % on the test images of the five base classes (from {min(accuracies):.2f} "
        f"to {max(accuracies):.2f} %) after {found['mean_seconds']:.1f} s of training; compile and warm-up took "
        f"{statistics.mean(found['warm_up_seconds']):.1f} s more."
    )


def _conditions(measured: Mapping[str, Any]) -> str:
    matmul, versions = measured["matmul"], measured["versions"]
    workers = [f"{line['workers']} in {_work(line)}" for line in measured["rows"] if "workers" in line]
    best = f" The plain way was fastest with these numbers of workers: {'; '.join(workers)}." if workers else ""
    product = (
        f"A {matmul['dtype']} product of two matrices of side {matmul['side']} reaches {matmul['tflops']:.3g} TFLOP/s."
        if matmul
        else ""
    )
    packages = ", ".join(f"{name} {versions[name]}" for name in ("torch", "torchvision", "cuda") if name in versions)
    return (
        f"{product}{best} {packages}, {measured['date']}, commit {_short(measured['commit'])}. "
        f"Command: `{measured['command']}`"
    ).strip()


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([row[column] for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _work(line: Mapping[str, Any]) -> str:
    return f"{KINDS[line['kind']]}, batch {line['batch']}"


def _mode(line: Mapping[str, Any]) -> str:
    return MODES[line["mode"]]


def _short(commit: str) -> str:
    """Return the beginning of a commit, and whether files had changed since."""
    name, dash, state = commit.partition("-")
    return name[:12] + dash + state


def _sentence(error: str) -> str:
    return error.rstrip(".") + "."


def _number(value: float | None, digits: int = 0) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


if __name__ == "__main__":
    main()
