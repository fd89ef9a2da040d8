import json
import sys
from pathlib import Path

import pytest
from benchmarks import magnitudes
from benchmarks.picture_records import picture_records
from benchmarks.pictures import draw

from bench.digits_archive import write_digits


def test_a_picture_of_the_gates_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_digits(tmp_path)
    places = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    quick = ["--backbone", "resnet8", "--set", "training.epochs=1", "--set", "base.training.epochs=1"]
    monkeypatch.setattr(sys, "argv", ["magnitudes", *places, *quick, "--device", "cpu", "--gates", "imm", "amm"])
    magnitudes.main()
    record = json.loads((tmp_path / "out" / "magnitude-cifar10.json").read_text())
    assert [gate["label"] for gate in record["gates"]] == ["IMM", "AMM"]
    imm, amm = record["gates"]
    for name in ("old", "new"):
        assert all(unit["gated"] == pytest.approx(unit["novel"]) for unit in imm[name]["units"])
        assert all(0 < unit["gated"] < unit["novel"] for unit in amm[name]["units"])
    assert "IMM" in draw(record)


def _record(method: str, seed: int, **changes: object) -> dict[str, object]:
    record = {"method": method, "seed": seed, "dataset": "cifar10", "base": "reference", "name": None, "steps": 1}
    curve = {"points": [[-1.0, 1.0, 0.0], [0.0, 0.9, 0.5 + seed / 10], [1.0, 0.0, 1.0]], "area": 0.6}
    return {**record, "split": "first", "tradeoff": curve, "old_new": [[0.9, 0.1], [0.3, 0.7]], **changes}


def test_pictures_show_the_first_seed_of_each_system_in_the_order_of_the_table() -> None:
    records = [
        _record("inlay", 1),
        _record("inlay", 0),
        _record("adm", 0),
        _record("adm", 2, base="ours"),
        _record("adm", 1, name="gate-aff"),
        _record("adm", 1, steps=2),
        _record("ceiling", 0),
        _record("frost", 0, tradeoff=None),
    ]
    found = picture_records(records)
    assert found.keys() == {f"{kind}-cifar10{base}" for kind in ("tradeoff", "confusion") for base in ("", "-ours")}
    curve = found["tradeoff-cifar10"]
    assert [system["label"] for system in curve["systems"]] == ["adm", "inlay"]
    assert curve["systems"][1]["points"][1] == [0.0, 0.9, 0.5]
    for record in found.values():
        assert "adm" in draw(record)
