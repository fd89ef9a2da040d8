import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from bench.digits_archive import write_digits
from inlay.backbones.task_tokens import SHAPES
from inlay.bench.table2 import Run
from inlay.increments.systems.catalogue import FAIR, PUBLISHED, Table, system

Inlay = Callable[..., CompletedProcess[str]]
Refused = Callable[..., str]

QUICK = {"base.epochs": "1", "stage.epochs": "1", "tuning.epochs": "1"}
SMALL = ("--dataset", "cifar10", "--base-classes", 4, "--stages", 2, "--orders", "numpy-1993", "--device", "cpu")
CHANGES = tuple(f"--set={path}={value}" for path, value in {**QUICK, "backbone": "resnet8"}.items())
# With branches those of table B, as those of table A would go the same way.
EVERY_RUN = [*(("A", name, "plain") for name in PUBLISHED), *(("B", name, "amm") for name in FAIR)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base stages are shared by all runs."""
    return tmp_path_factory.mktemp("work")


def _backbone(name: str, table: Table) -> str:
    return "dytox-tiny" if system(name, table).recipe.backbone in SHAPES else "resnet8"


def _record(folder: Path, run: Run) -> dict[str, Any]:
    record = json.loads((folder / f"{run.label}.json").read_text())
    assert isinstance(record, dict)
    return record


@pytest.mark.parametrize(("table", "name", "control"), EVERY_RUN)
def test_every_system_goes_through_the_command(
    inlay: Inlay, data: Path, work: Path, tmp_path: Path, table: Table, name: str, control: str
) -> None:
    changes = {**QUICK, "backbone": _backbone(name, table)}
    run = Run(name, table, control, 2, "numpy-1993", 4, dataset="cifar10", changes=changes)
    places = ("--data", data, "--out", tmp_path, "--work", work, "--device", "cpu", "--commit", "abc")
    said = inlay("bench", "run-one-of-table2", json.dumps(run.to_json()), *places)
    assert (said.returncode, said.stderr) == (0, "")
    record = _record(tmp_path, run)
    assert [len(stage["groups"]) for stage in record["curve"]] == [1, 2, 3]
    assert record["average"] == pytest.approx(sum(stage["cnn"] for stage in record["curve"]) / 3)
    kept = system(name, table).recipe.memory.share(10)
    assert record["memory"] == 10 * min(kept, 20)
    assert (record["nme_average"] is None) == (kept == 0)
    if control == "amm":
        assert record["parameters"] == record["parameters_base"]
        assert record["merge"] < 1e-4


def test_what_is_done_stays_done(inlay: Inlay, data: Path, work: Path, tmp_path: Path) -> None:
    command = ("bench", "table2", "--data", data, "--out", tmp_path, "--work", work, *SMALL, *CHANGES)
    first = inlay(*command, "--methods", "icarl,icarl+amm", "--side-by-side", 2)
    assert (first.returncode, first.stderr) == (0, "")
    *news, heading, plain, amm = first.stdout.splitlines()
    labels = [f"cifar10-A-{row}-b4-2-numpy-1993-seed0" for row in ("icarl", "icarl+amm")]
    assert sorted(line.split(": ")[1] for line in news) == sorted(labels)
    for label, row in zip(labels, (plain, amm), strict=True):
        record = json.loads((tmp_path / f"{label}.json").read_text())
        shown = [f"{100 * record[part]:.1f}" for part in ("average", "last", "forgetting", "nme_average")]
        assert row.split()[1:] == ["2", "numpy-1993", *shown]
    written = {file: file.read_bytes() for file in tmp_path.iterdir()}
    again = inlay(*command, "--methods", "icarl+amm")
    assert again.stdout.splitlines() == [f"{labels[1]}: done before", heading, amm]
    other = inlay(*command, "--methods", "icarl", "--set=stage.batch=64")
    assert other.returncode == 2
    assert "holds the results of" in other.stderr
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == written


def test_dry_run_lists_and_writes_nothing(inlay: Inlay, data: Path, tmp_path: Path) -> None:
    places = ("--data", data, "--out", tmp_path / "out", "--work", tmp_path / "work")
    said = inlay("bench", "table2", *places, *SMALL, "--table", "B", "--methods", "icarl", "--dry-run")
    assert said.returncode == 0
    assert said.stdout.splitlines() == [
        f"cifar10-B-icarl+{control}-b4-2-numpy-1993-seed0: to do"
        for control in ("full", "frozen", "imm", "constant", "amm")
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--methods", "magic", "There is no method 'magic' in table A; choose from: icarl,"),
        ("--methods", "icarl,", "Write --methods as names with commas between them"),
        ("--controls", "gate", "There is no control 'gate'; choose from: plain, full, frozen, imm, constant, amm"),
        ("--stages", "ten", "Write --stages as whole numbers with commas between them"),
        ("--stages", "4", "6 classes beyond a base of 4 cannot be cut evenly into 4 stages"),
        ("--base-classes", "50", "cannot be cut evenly"),
        ("--orders", "alphabet", "There is no class order 'alphabet'"),
        ("--orders", "icarl-1993", "is one of 100 classes, not 10; write numpy-1993"),
        ("--dataset", "cifar100", "cifar100 is not in"),
        ("--set", "epochs=3", "There is no setting 'epochs'"),
        ("--set", "backbone=resnet9000", "resnet9000"),
        ("--set", "view=upside-down", "upside-down"),
        ("--device", "tpu", "There is no device 'tpu'"),
    ],
)
def test_table2_refuses(refused: Refused, data: Path, tmp_path: Path, option: str, value: str, complaint: str) -> None:
    usual = dict(zip(SMALL[::2], SMALL[1::2], strict=True))
    places = {"--data": data, "--out": tmp_path / "out", "--work": tmp_path / "work", "--methods": "icarl"}
    words = [word for pair in {**usual, **places, option: value}.items() for word in pair]
    assert complaint in refused(data, "bench", "table2", *words)
    assert list(tmp_path.iterdir()) == []
