import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inlay.bench import Places, Run, measure
from inlay.bench.records import METRICS, finished_record
from inlay.bench.systems import SYSTEMS
from inlay.engine.progress import QuietProgress
from inlay.errors import InlayError
from inlay.learner import Learner

QUICK = {"training.epochs": "1", "base.training.epochs": "1", "classifier.refit_per_class": "20"}
KEYS = {
    *("method", "dataset", "seed", "split", "steps", "base_recipe", "schedule", "metrics", "parameters"),
    *("stored_bytes", "seconds", "hardware", "commit", "command"),
}


def _run(system: str) -> Run:
    return Run(system, "cifar10", 0, changes=QUICK, backbone="resnet8")


def _measured(run: Run, places: Places) -> dict[str, Any]:
    measure(run, places)
    record = json.loads(places.result(run).read_text())
    assert isinstance(record, dict)
    return record


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_goes_from_base_stage_to_scores(places: Places, system: str) -> None:
    record = _measured(_run(system), places)
    assert record.keys() >= KEYS
    assert (record["method"], record["dataset"], record["split"], record["steps"]) == (system, "cifar10", "first", 1)
    metrics = record["metrics"]
    assert metrics.keys() == set(METRICS)
    assert metrics["all"] == pytest.approx((metrics["old"] + metrics["new"]) / 2)
    assert metrics["groups"] == {"base": metrics["old"], "stage1": metrics["new"]}
    assert metrics["old_head"] >= metrics["old"]
    assert metrics["new_head"] >= metrics["new"]
    assert record["commit"] == "abc"
    assert record["seconds"]["base"] > 0
    if system != "ceiling":
        assert record["matched_on"] == "train"
        assert [stage["metrics"] for stage in record["stages"]] == [metrics]
        assert len(record["seconds"]["stages"]) == 1


def test_systems_start_from_the_same_base_stage(places: Places) -> None:
    first, second = _measured(_run("adm"), places), _measured(_run("kmeans"), places)
    assert first["base_metrics"] == second["base_metrics"]
    assert first["seconds"]["base"] == second["seconds"]["base"]
    # Kept per class: mean and count; one spread for all classes, or per class spread and correlations in two bytes.
    features = (first["stored_bytes"] - 10 * 8) // (4 * 11)
    assert second["stored_bytes"] == 10 * (4 * features + 8 + 4 * features + 2 * features**2)


def test_the_ceiling_is_scored_on_the_classes_it_has_learned(places: Places) -> None:
    changes = {"base.training.epochs": "20", "base.view": "none"}
    run = Run("ceiling", "cifar10", 0, split_seed=3, changes=changes, backbone="resnet8")
    metrics = _measured(run, places)["metrics"]
    assert min(metrics["old"], metrics["new"]) > 0.5


def test_each_of_two_stages_is_scored(places: Places, tmp_path: Path) -> None:
    """A hundred classes of noise around a random pattern."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(100), 3)
    patterns = generator.integers(0, 200, (100, 8, 8))
    images = (patterns[labels] + generator.integers(0, 50, (300, 8, 8))).astype(np.uint8)
    np.savez(
        tmp_path / "cifar100.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels
    )
    run = Run("adm", "cifar100", 0, steps=2, changes=QUICK, backbone="resnet8")
    record = _measured(run, dataclasses.replace(places, data=tmp_path))
    first, second = record["stages"]
    assert first["metrics"]["groups"].keys() == {"base", "stage1"}
    assert second["metrics"]["groups"].keys() == {"base", "stage1", "stage2"}
    assert record["metrics"] == second["metrics"]
    assert record["base_metrics"]["groups"].keys() == {"base"}
    assert len(record["seconds"]["stages"]) == record["steps"] == 2


def test_a_run_whose_file_was_lost_is_not_trained_again(places: Places) -> None:
    run = _run("adm")
    before = _measured(run, places)
    places.result(run).unlink()
    assert _measured(run, places) == before


def test_other_settings_do_not_go_on_with_the_stages_of_a_run(places: Places) -> None:
    run = _run("adm")
    first = _measured(run, places)
    second = _measured(dataclasses.replace(run, changes={**QUICK, "training.epochs": "2"}), places)
    assert len(second["stages"]) == 1
    assert second["seconds"]["base"] == first["seconds"]["base"]
    assert second["seconds"]["stages"] != first["seconds"]["stages"]


def test_a_finished_record_is_that_of_the_run(places: Places) -> None:
    run = _run("imm")
    record, file = _measured(run, places), places.result(run)
    assert finished_record(run, file) == record
    with pytest.raises(InlayError, match=r"holds the results of .*; pass --name or another --out"):
        finished_record(dataclasses.replace(run, changes={}), file)
    file.write_text(json.dumps({**record, "metrics": dict.fromkeys(METRICS)}))
    assert finished_record(run, file) is None
    assert finished_record(run, file.with_name("none.json")) is None


class _PowerCut(Exception):
    pass


class _CutAfter(QuietProgress):
    """Ends a run without warning at a step of its second piece of work, the discovery stage."""

    def __init__(self) -> None:
        self.pieces = 0

    def start(self, name: str, total: int, done: int) -> None:
        self.pieces += 1

    def step(self, done: int, losses: Mapping[str, float]) -> None:
        if self.pieces > 1:
            raise _PowerCut


def test_a_run_that_was_cut_short_has_no_scores_and_is_finished_by_the_next(places: Places, tmp_path: Path) -> None:
    run = _run("adm")
    whole = _measured(run, places)
    anew = dataclasses.replace(places, out=tmp_path / "out", work=tmp_path / "work")
    with pytest.raises(_PowerCut):
        measure(run, anew, _CutAfter())
    cut = json.loads(anew.result(run).read_text())
    assert cut["base_metrics"] == whole["base_metrics"] and cut["metrics"]["all"] is None
    assert finished_record(run, anew.result(run)) is None
    finished = _measured(run, anew)
    assert finished["metrics"] == whole["metrics"] and finished["seconds"]["base"] == cut["seconds"]["base"]


def test_steps_are_taken_at_the_pace_that_is_asked_for_and_the_record_stays_the_same(
    places: Places, tmp_path: Path
) -> None:
    usual = _measured(_run("kmeans"), places)
    asked = dataclasses.replace(places, out=tmp_path / "out", work=tmp_path / "work", pace="eager")
    record = _measured(_run("kmeans"), asked)
    assert {**record, "seconds": None, "date": None} == {**usual, "seconds": None, "date": None}
    base, run = (
        Learner.load(next(folder for folder in (asked.work / part).iterdir() if folder.is_dir())).settings
        for part in ("bases", "runs")
    )
    assert (base.base.training.pace, run.training.pace) == ("eager", "eager")
