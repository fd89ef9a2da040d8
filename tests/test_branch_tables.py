import argparse
import copy
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from benchmarks.page import measured_files
from torch import nn

from inlay.errors import InlayError

ROOT = Path(__file__).parent.parent


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = _load("branch_tables")
benchmark = _load("branches")


def _times(**medians: float) -> dict[str, Any]:
    return {name.replace("_", " "): {"median": median, "spread": median / 10} for name, median in medians.items()}


def _found() -> dict[str, Any]:
    return {
        "name": "net",
        "image": [3, 32, 48],
        "error": None,
        "targets": "default",
        "plan": {
            "default": {"branched": {"conv-bn": 7}, "frozen": {"linear": 2}, "refused": {"odd|shape; more": 3}},
            "all": {"branched": {"conv-bn": 7, "linear": 2}, "frozen": {}, "refused": {"odd|shape; more": 3}},
        },
        "merge_error": {"float32": 2.4e-7, "float64": 0.0},
        "stock": {"loads": True, "error": 0.0, "why": ""},
        "lora": {
            "layers": 5,
            "rank": 8,
            "refused": {"ValueError: No groups. Rank 8. Choose another.": 2},
            "note": "",
        },
        "trainable": {"hybrid": 12345, "LoRA": 678},
        "runs": 30,
        "forward": _times(
            original=2.0, folded=1.5, hybrid=4.0, merged=1.0, two_branches=5.0, LoRA=3.0, LoRA_merged=2.0
        ),
        "training": _times(original=1.0, hybrid=1.5, LoRA=1.25),
        "peak_memory": {},
    }


def _measured(*networks: dict[str, Any]) -> dict[str, Any]:
    return {
        "command": "python benchmarks/branches.py --networks net",
        "hardware": "2 CPU cores",
        "versions": {"torch": "2", "peft": "1"},
        "date": "2030-01-01",
        "precision": {"forward": "float32", "training": "bfloat16"},
        "batch": 8,
        "networks": list(networks),
    }


def test_the_page_shows_the_measured_numbers() -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.with_tables(page, measured_files(tables.RESULTS, "branches")) == page


def test_a_network_has_a_row_in_both_tables() -> None:
    lines = tables.section(_measured(_found()), "branches-cpu.json").splitlines()
    assert [line for line in lines if line.startswith("| net,")] == [
        "| net, 32×48 | 7 conv-bn | 2 linear | 3: odd\\|shape | 2e-07 / 0 | yes | 1.50 | 0.75 | 2.00 | 0.50 |",
        "| net, 32×48 | 5 of 7 | 2: No groups. Rank 8 | 12,345 / 678 | 1.50 / 1.25 | 2.50 / 1.50 | 0.50 / 1.00 |",
    ]


def test_conditions_name_hardware_batch_runs_and_command() -> None:
    slower = _found() | {"name": "slow", "runs": 12}
    slower["forward"] = {**slower["forward"], "hybrid": {"median": 4.0, "spread": 2.0}}
    text = tables.section(_measured(_found(), slower), "branches-cpu.json")
    assert text.startswith("### Networks on 2 CPU cores\n")
    assert "12 to 30 interleaved runs of 8 images, forward in float32, training in bfloat16" in text
    assert "range is 10 % of the median in the middle and 50 % at most" in text
    assert "PEFT 1 with rank 8" in text
    assert "`python benchmarks/branches.py --networks net`" in text
    assert "(../benchmarks/results/branches-cpu.json)" in text


def test_a_failed_network_is_named_with_its_error_and_has_no_row() -> None:
    failed = {"name": "bad", "image": [3, 8, 8], "error": "It is odd."}
    text = tables.section(_measured(_found(), failed), "x.json")
    assert "Not measured: bad, It is odd." in text
    assert "| bad" not in text
    assert "|" not in tables.section(_measured(failed), "x.json").split("Not measured")[0]


def test_what_was_not_measured_leaves_a_dash() -> None:
    found = _found()
    found["lora"]["note"] = "no stride"
    for series in (found["forward"], found["training"], found["trainable"]):
        series.pop("LoRA", None)
        series.pop("LoRA merged", None)
    row = tables.lora_row(found)
    assert row["refused by PEFT"] == "2: No groups. Rank 8; the network then fails: no stride"
    assert row["training step, ours / LoRA"] == "1.50 / –"
    assert row["trained, ours / LoRA"] == "12,345 / –"


def test_without_peft_there_is_one_table() -> None:
    found = _found() | {"lora": {"layers": None, "refused": {}, "note": "peft is not installed"}}
    text = tables.section(_measured(found), "x.json")
    assert text.count("\n| ---") == 1
    assert "LoRA" not in text


def test_memory_has_a_column_where_it_was_measured() -> None:
    row = tables.branch_row(_found() | {"peak_memory": {"original": 200, "hybrid": 250}})
    assert row["memory of a step"] == "1.25"


def test_a_network_without_norms_says_which_targets_were_measured() -> None:
    found = _found() | {"targets": "all"}
    found["plan"] = {"default": found["plan"]["default"] | {"branched": {}}, "all": found["plan"]["all"]}
    row = tables.branch_row(found)
    assert "all" in row["branched"]
    assert row['added by `kinds="all"`'] == "7 conv-bn, 2 linear"


def test_tables_replace_only_what_is_between_the_marks() -> None:
    page = f"before {tables.BEGIN} old {tables.END} after"
    once = tables.with_tables(page, {"x.json": _measured(_found())})
    assert once.startswith("before ") and once.endswith(" after") and " old " not in once
    assert tables.with_tables(once, {"x.json": _measured(_found())}) == once


def _run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["branches.py", "--batch", "2", "--runs", "2", *words])
    benchmark.main()


def test_a_measured_network_is_written_skipped_and_tabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "branches-cpu.json"
    _run(monkeypatch, "--networks", "regnet-y", "--out", str(out))
    first = json.loads(out.read_text(encoding="utf-8"))
    found = first["networks"][0]
    assert found["error"] is None and found["exact_start"] and found["same_graph"] and found["stock"]["loads"]
    assert found["attach_error"] < 1e-5
    assert found["movement"] > 1e-3
    assert found["merge_error"]["float32"] < 1e-4 and found["merge_error"]["float64"] < 1e-10
    assert found["parameters"]["folded"] == found["parameters"]["merged"] < found["parameters"]["hybrid"]
    assert found["runs"] == 2
    assert found["forward"].keys() == found["parameters"].keys()
    assert found["training"].keys() == {"original", "folded", "hybrid", "merged", "LoRA"}
    # PEFT cannot merge into a convolution with groups.
    assert sum(found["lora"]["refused"].values()) + found["lora"]["layers"] == 12
    assert "regnet-y" in tables.section(first, out.name)

    _run(monkeypatch, "--networks", "regnet-y", "vit", "--out", str(out), "--skip-done")
    again = json.loads(out.read_text(encoding="utf-8"))["networks"]
    assert [entry["name"] for entry in again] == ["regnet-y", "vit"]
    assert again[0] == found


def test_other_conditions_are_not_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "branches-cpu.json"
    out.write_text(json.dumps(_measured() | {"device": "cpu"}), encoding="utf-8")
    before = out.read_bytes()
    with pytest.raises(SystemExit, match="another batch"):
        _run(monkeypatch, "--networks", "vit", "--out", str(out), "--append")
    assert out.read_bytes() == before


def test_a_network_that_fails_is_recorded() -> None:
    def broken() -> nn.Module:
        raise InlayError("There are no weights.")

    network = benchmark.Network("broken", "inlay", broken, lambda batch: torch.zeros(batch, 3, 8, 8), broken)
    options = argparse.Namespace(device="cpu", batch=2, runs=1, seconds_per_network=None)
    found = benchmark.measure(network, options)
    assert found["error"] == "There are no weights."
    assert found["name"] == "broken"


@pytest.mark.parametrize("words", [["--networks", "nothing"], ["--networks", "vit", "--runs", "0"]])
def test_bad_words_end_in_one_sentence(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="Error: "):
        _run(monkeypatch, *words)


def test_another_graph_is_refused() -> None:
    folded = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    benchmark.check_same_graph(folded, copy.deepcopy(folded))
    for other in (nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU())):
        with pytest.raises(InlayError, match="where the folded base has"):
            benchmark.check_same_graph(folded, other)


def test_time_ends_the_runs_after_the_first() -> None:
    task = benchmark.Task(torch.zeros(2, 3), classifies=True)
    found = benchmark.timings({"one": nn.Linear(3, 2)}, task, runs=1000, seconds=0.0)
    assert found["runs"] == 1
    assert found["forward"]["one"]["spread"] == 0
    assert found["training"].keys() == {"one"}
