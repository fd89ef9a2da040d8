import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from inlay.bench import Places
from inlay.bench.table2 import Run, base_name, measure
from inlay.bench.table2 import measurement as measurement_module
from inlay.bench.table2.record import finished_record
from inlay.bench.table2.state import read_state, write_state
from inlay.errors import InlayError, Interrupted
from inlay.increments import course as course_module

QUICK = {"base.epochs": "1", "stage.epochs": "1", "backbone": "resnet8", "view": "none"}
ICARL = Run("icarl", "B", "full", 3, "numpy-1993", 4, dataset="cifar10", changes=QUICK)
KEYS = {
    *("method", "table", "control", "stages", "base_classes", "order", "seed", "dataset", "curve", "average", "last"),
    *("forgetting", "nme_average", "nme_last", "parameters", "parameters_base", "memory", "merge", "recipe"),
    *("settings", "seconds", "hardware", "versions", "commit", "command", "date"),
}


@pytest.fixture
def own_places(places: Places, tmp_path: Path) -> Places:
    return dataclasses.replace(places, out=tmp_path / "out", work=tmp_path / "work")


def _measured(run: Run, places: Places) -> dict[str, Any]:
    measure(run, places)
    record = json.loads(places.result(run).read_text())
    assert isinstance(record, dict)
    return record


def _accuracies(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value for name, value in stage.items() if name != "seconds"} for stage in record["curve"]]


def test_the_record_says_everything(places: Places) -> None:
    record = _measured(ICARL, places)
    assert record.keys() >= KEYS
    curve = record["curve"]
    assert [len(stage["groups"]) for stage in curve] == [1, 2, 3, 4]
    # Stages of 4, 2, 2 and 2 classes with ten test images each.
    sizes = [4, 2, 2, 2]
    for stage in curve:
        groups = stage["groups"]
        shares = [size * group for size, group in zip(sizes, groups, strict=False)]
        assert stage["cnn"] == pytest.approx(sum(shares) / sum(sizes[: len(groups)]))
    for head, average, last in (("cnn", "average", "last"), ("nme", "nme_average", "nme_last")):
        values = [stage[head] for stage in curve]
        assert (record[average], record[last]) == (pytest.approx(sum(values) / 4), values[-1])
    assert record["seconds"] == pytest.approx(sum(stage["seconds"] for stage in curve))
    assert (record["memory"], record["merge"], record["commit"]) == (200, None, "abc")
    assert record["recipe"]["stage"]["epochs"] == 1
    assert record["settings"] == {"branch.gate": "full", **QUICK}


def test_controls_start_from_the_same_base_stage(places: Places) -> None:
    first = _measured(ICARL, places)
    second = _measured(dataclasses.replace(ICARL, control="frozen"), places)
    fewer = _measured(dataclasses.replace(ICARL, stages=1), places)
    assert first["curve"][0] == second["curve"][0] == fewer["curve"][0]
    other = _measured(dataclasses.replace(ICARL, stages=1, changes={**QUICK, "base.epochs": "2"}), places)
    assert other["curve"][0]["seconds"] != first["curve"][0]["seconds"]


def test_runs_have_the_same_name_for_the_base_stage_that_they_share() -> None:
    alike = [dataclasses.replace(ICARL, **changed) for changed in ({"control": "frozen"}, {"stages": 1})]
    assert {base_name(run) for run in alike} == {base_name(ICARL)}
    longer = {**QUICK, "base.epochs": "2"}
    differences = (
        *({"order": "natural"}, {"base_classes": 7, "stages": 1}, {"seed": 1}, {"dataset": "cifar100"}),
        *({"changes": longer}, {"method": "podnet"}),
    )
    apart = [dataclasses.replace(ICARL, **changed) for changed in differences]
    assert len({base_name(run) for run in [ICARL, *apart]}) == 1 + len(apart)
    # What is trained later does not change what a run begins with.
    later = dataclasses.replace(ICARL, changes={**QUICK, "stage.epochs": "5"})
    assert base_name(later) == base_name(ICARL)


def test_the_images_kept_are_those_of_the_run(places: Places) -> None:
    """They are chosen after the base stage is shared."""
    run = dataclasses.replace(ICARL, stages=1, changes={**QUICK, "memory.per_class": "3"}, name="few")
    record = _measured(run, places)
    assert record["curve"][0]["seconds"] == _measured(ICARL, places)["curve"][0]["seconds"]
    assert record["memory"] == 30


def test_a_stopped_run_goes_on_after_its_last_stage(own_places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    run = dataclasses.replace(ICARL, control="amm")
    learned: list[int] = []

    def stopped_in_stage_2(*arguments: Any) -> course_module.Standing:
        before = arguments[2]
        if before is not None and before.index == 1 and len(learned) < 3:
            learned.append(-1)
            raise Interrupted("Stopped.")
        learned.append(0 if before is None else before.index + 1)
        return course_module.next_stage(*arguments)

    monkeypatch.setattr(measurement_module, "next_stage", stopped_in_stage_2)
    with pytest.raises(Interrupted):
        measure(run, own_places)
    partial = json.loads(own_places.result(run).read_text())
    assert (len(partial["curve"]), partial["average"]) == (2, None)
    assert finished_record(run, own_places.result(run)) is None
    record = _measured(run, own_places)
    assert learned == [0, 1, -1, 2, 3]
    monkeypatch.undo()
    whole = _measured(run, dataclasses.replace(own_places, work=own_places.work / "other"))
    assert _accuracies(record) == _accuracies(whole)
    assert record["curve"][:2] == partial["curve"]
    assert record["parameters"] == record["parameters_base"] == whole["parameters"]
    assert record["merge"] == whole["merge"] < 1e-4


def test_a_run_whose_file_was_lost_is_not_trained_again(places: Places) -> None:
    before = _measured(ICARL, places)
    places.result(ICARL).unlink()
    assert _measured(ICARL, places) == before


def test_a_finished_record_is_that_of_the_run(places: Places) -> None:
    record, file = _measured(ICARL, places), places.result(ICARL)
    assert finished_record(ICARL, file) == record
    with pytest.raises(InlayError, match=r"holds the results of .*; pass --name or another --out"):
        finished_record(dataclasses.replace(ICARL, changes={}), file)


def test_a_state_is_written_whole_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    file, device = tmp_path / "state.pt", torch.device("cpu")
    assert read_state(file, device) is None
    write_state(file, {"numbers": torch.arange(3)})
    assert list(tmp_path.iterdir()) == [file]
    found = read_state(file, device)
    assert found is not None and torch.equal(found["numbers"], torch.arange(3))
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InlayError, match=r"state\.pt cannot be read .*; delete it to begin again"):
        read_state(file, device)
