import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import speed, speed_tables
from benchmarks.speed_records import PLAIN, Sheet, header, headline, row

CPU = torch.device("cpu")


def _found(rate: float, **more: Any) -> dict[str, Any]:
    figures = {"images_per_s": rate, "seconds": 4.0, "waiting_s": 1.0, "warm_up_s": 2.5, "peak_memory": 3_000_000_000}
    return figures | more


def _row(kind: str, batch: int, mode: str, rate: float, **more: Any) -> dict[str, Any]:
    return row(kind, batch, mode, _found(rate, **more), "resnet18", 800.0)


def _rows() -> list[dict[str, Any]]:
    return [
        _row("base", 512, PLAIN, 10_000, workers=8, by_workers={"8": 10_000.0}),
        _row("base", 128, PLAIN, 5_000, workers=4),
        _row("adm", 256, PLAIN, 1_000, workers=16),
        _row("base", 512, "graph", 90_000),
        _row("base", 512, "compile", 100_000),
        _row("base", 128, "compile", 40_000),
        _row("adm", 256, "compile", 12_000),
    ]


def _measured(rows: list[dict[str, Any]]) -> dict[str, Any]:
    target = {
        "schedule": "40 epochs",
        "seeds": [0, 1],
        "accuracies": [0.95, 0.96],
        "warm_up_seconds": [20.0, 30.0],
        "mean_seconds": 12.34,
    }
    return {
        "command": "python -m benchmarks.speed --device cuda",
        "commit": "0123456789abcdef",
        "hardware": "GPU, 16 CPU cores",
        "versions": {"torch": "2", "numpy": "1"},
        "date": "2030-01-01",
        "network": "resnet18",
        "matmul": {"side": 8192, "dtype": "bfloat16", "tflops": 800.0},
        "rows": rows,
        "inference": {"evaluation_images_per_s": 1e5, "prediction_images_per_s": 5e4, "latency_ms": 1.234},
        "base_to_target": target,
        "headline": headline(rows, target),
    }


def test_the_page_shows_the_measured_numbers() -> None:
    page = speed_tables.PAGE.read_text(encoding="utf-8")
    assert speed_tables.with_tables(page, speed_tables.sections(speed_tables.RESULTS)) == page


def test_the_headline_takes_our_fastest_mode_and_the_smallest_ratio() -> None:
    assert headline(_rows(), {"mean_seconds": 12.5}) == {
        "base_512": 100_000,
        "base_128": 40_000,
        "adm_256": 12_000,
        "base_to_target_s": 12.5,
        "ratio_to_plain": 8.0,
    }


def test_a_headline_says_nothing_of_what_was_not_measured() -> None:
    rows = [line for line in _rows() if (line["kind"], line["mode"]) != ("adm", PLAIN)]
    found = headline(rows, None)
    assert found["ratio_to_plain"] is None and found["base_to_target_s"] is None
    assert found["adm_256"] == 12_000
    assert set(headline([], None).values()) == {None}


def test_arithmetic_is_that_of_the_work() -> None:
    base, novel = _row("base", 512, "graph", 100_000), _row("adm", 256, "graph", 10_000)
    assert base["tflops"] == pytest.approx(334) and base["share_of_matmul"] == pytest.approx(334 / 800)
    assert novel["tflops"] == pytest.approx(121)
    other = row("base", 512, "graph", _found(1.0), "resnet8", 800.0)
    assert other["tflops"] is None and other["share_of_matmul"] is None


def test_a_row_shows_rate_ratio_arithmetic_waiting_warm_up_and_memory() -> None:
    lines = speed_tables.training_table(_rows()).splitlines()
    assert lines[2] == "| base stage, batch 512 | plain way | 10,000 | 1.0× | 33.4 | 4.2 % | 25.0 % | 2.5 | 3.00 |"
    assert lines[6].startswith("| base stage, batch 512 | compiled, CUDA graph | 100,000 | 10.0× | 334.0 | 41.8 % |")


def test_what_was_not_measured_leaves_a_dash() -> None:
    alone = row("adm", 16, "eager-float32", _found(5.0, peak_memory=None), "resnet8", None)
    line = speed_tables.training_table([alone]).splitlines()[2]
    assert line == "| ADM novel stage, batch 16 | eager, float32 | 5 | – | – | – | 25.0 % | 2.5 | – |"


def test_a_section_names_conditions_and_file() -> None:
    text = speed_tables.section(_measured(_rows()), "speed-gpu.json")
    assert text.startswith("### resnet18 on GPU, 16 CPU cores\n")
    assert "| 100,000 | 40,000 | 12,000 | 12.3 | 8.0 |" in text
    assert "95.50 % on the test images of the five base classes (from 95.00 to 96.00 %) after 12.3 s" in text
    assert "warm-up took 25.0 s more" in text
    assert "100,000 images/s through the folded network" in text and "takes 1.23 ms" in text
    assert "8 in base stage, batch 512; 4 in base stage, batch 128; 16 in ADM novel stage, batch 256" in text
    assert "of side 8192 reaches 800 TFLOP/s" in text
    assert "commit 0123456789ab. Command: `python -m benchmarks.speed --device cuda`" in text
    assert text.endswith("(../benchmarks/results/speed-gpu.json).")


def test_tables_replace_only_what_is_between_the_marks() -> None:
    page = f"before {speed_tables.BEGIN} old {speed_tables.END} after"
    parts = [speed_tables.section(_measured(_rows()), "speed-gpu.json"), "another"]
    once = speed_tables.with_tables(page, parts)
    assert once.startswith("before ") and once.endswith(" after") and " old " not in once
    assert all(part in once for part in parts)
    assert speed_tables.with_tables(once, parts) == once


def test_streaming_is_told_with_its_memory() -> None:
    row = {"form": "shards", "images_per_s": 512.4, "training_s": 80.0, "waiting_s": 2.0, "checking_s": 20.0}
    measured = {
        "command": "python benchmarks/streaming.py",
        "commit": "0123456789abcdef",
        "hardware": "CPU, 2 cores",
        "versions": {"torch": "2"},
        "date": "2030-01-01",
        "images": 40_000,
        "image": [3, 128, 96],
        "decoded_bytes": 2_150_000_000,
        "batch": 64,
        "rows": [{**row, "seconds": 100.0, "peak_mb": 1234.5}],
    }
    text = speed_tables.streaming_section(measured, "streaming-cpu.json")
    assert "| WebDataset shards | 512 | 2.5 % | 20 | 1,234 |" in text
    assert "40,000 images of 96×128 with 3 channels, 2.1 GB when decoded" in text


def test_check_tells_whether_the_page_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "speed.md"
    page.write_text(f"{speed_tables.BEGIN}{speed_tables.END}", encoding="utf-8")
    (tmp_path / "speed-gpu.json").write_text(json.dumps(_measured(_rows())), encoding="utf-8")
    monkeypatch.setattr(speed_tables, "PAGE", page)
    monkeypatch.setattr(speed_tables, "RESULTS", tmp_path)

    def outdated() -> object:
        monkeypatch.setattr("sys.argv", ["speed_tables", "--check"])
        with pytest.raises(SystemExit) as ended:
            speed_tables.main()
        return ended.value.code

    assert outdated()
    monkeypatch.setattr("sys.argv", ["speed_tables"])
    speed_tables.main()
    assert not outdated()


def test_a_failed_row_is_kept_with_its_error_and_is_no_row_of_the_table(tmp_path: Path) -> None:
    def fails() -> dict[str, Any]:
        raise RuntimeError("no\ncompiler")

    record = _measured([])
    sheet = Sheet(record, tmp_path / "new" / "speed-x.json")
    sheet.add_row("base", 512, "compile", fails)
    sheet.add_row("base", 512, "graph", lambda: _found(7.0))
    assert json.loads((tmp_path / "new" / "speed-x.json").read_text(encoding="utf-8")) == record
    assert record["headline"]["base_512"] == 7.0
    text = speed_tables.summary(record)
    assert "Not measured: base stage, batch 512, compiled, CUDA graph: no compiler." in text
    assert "| base stage, batch 512 | compiled" not in text


def test_the_command_in_the_record_repeats_the_run() -> None:
    options = argparse.Namespace(quick=True, data="/somewhere/cifar.npz", modes=["graph", "compile"])
    command = header(options, CPU, "resnet8")["command"]
    assert command == "python -m benchmarks.speed --device cpu --quick --data CIFAR10 --modes graph compile"


def test_everything_runs_on_a_cpu(tmp_path: Path) -> None:
    scale = speed.Scale("resnet8", 16, (("adm", 8),), 0.0, 0.0, (1,), 16)
    options = argparse.Namespace(quick=True, data=None, modes=[PLAIN, "eager-float32", "graph"])
    out = tmp_path / "speed-cpu.json"
    record = speed.measure(scale, CPU, options, out)
    assert json.loads(out.read_text(encoding="utf-8")) == record
    trained = [line for line in record["rows"] if line["mode"] == "eager-float32"]
    assert [(line["kind"], line["batch"], line["error"]) for line in trained] == [("adm", 8, None)]
    # The first step of twelve is the warm-up.
    assert trained[0]["images"] == 8 * (speed.TRIAL_STEPS - 1)
    graphs = [line for line in record["rows"] if line["mode"] == "graph"]
    assert len(graphs) == 1 and "CUDA" in graphs[0]["error"]
    assert record["inference"]["latency_ms"] > 0
    assert "ADM novel stage, batch 8 | eager, float32" in speed_tables.summary(record)


def test_the_base_stage_of_cifar_is_trained_with_each_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "CIFAR_SCHEDULE", {"epochs": 3, "batch": 10, "learning_rate": 0.1})
    monkeypatch.setattr(speed, "CIFAR_SEEDS", (3, 4))
    labels = np.arange(40) % 10
    # Grey of another level for each class, which a few steps tell apart better than chance.
    images = np.broadcast_to((25 * labels)[:, None, None, None], (40, 32, 32, 3)).astype(np.uint8)
    file = tmp_path / "cifar.npz"
    np.savez(file, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    found = speed.base_to_target(str(file), "resnet8", CPU)
    assert found["seeds"] == [3, 4] and len(found["accuracies"]) == len(found["seconds"]) == 2
    # Five base classes of four test images each.
    assert all((20 * accuracy) == pytest.approx(round(20 * accuracy)) for accuracy in found["accuracies"])
    assert found["mean_accuracy"] > 0.2
    assert found["mean_seconds"] == pytest.approx(sum(found["seconds"]) / 2)
    assert found["schedule"].startswith("3 epochs, batch 10, learning rate 0.1")
    assert "3, 4" in speed_tables.target_sentence(found)
