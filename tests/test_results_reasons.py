import json
from pathlib import Path

from benchmarks.results_paper import read_paper
from benchmarks.results_reasons import NOT_RUN, reason_sections
from benchmarks.results_runs import NOTHING, read_runs
from benchmarks.results_tables import PAPER

from inlay.bench import Run
from inlay.bench.campaign import campaign
from result_records import metrics, record, rows


def _write(folder: Path, run: Run, old: float, new: float) -> None:
    facts = record(run.system, run.seed, dataset=run.dataset, name=run.name, base=run.base, metrics=metrics(old, new))
    (folder / f"{run.label}.json").write_text(json.dumps(facts), encoding="utf-8")


def _lines(folder: Path) -> list[dict[str, str]]:
    sections = reason_sections(read_runs(folder), read_paper(PAPER))
    return rows(sections[1]) if sections else []


def test_no_figure_below_print_needs_no_reason(tmp_path: Path) -> None:
    _write(tmp_path, Run("adm", "cifar10", 0), 0.9, 0.9)
    _write(tmp_path, Run("inlay", "cifar100", 0), 0.1, 0.1)
    assert _lines(tmp_path) == []


def test_a_figure_below_print_stands_beside_its_experiments(tmp_path: Path) -> None:
    _write(tmp_path, Run("frost", "cifar10", 0), 0.78, 0.3)
    batch, ramp, length = _lines(tmp_path)
    assert {line["below"] for line in (batch, ramp, length)} == {"New 19.5, All 9.4"}
    assert batch["likely reason"] == "64 novel images a step, as published, not 128"
    assert "19,550 steps" in ramp["likely reason"] and "full length" in length["likely reason"]
    assert {line["runs"] for line in (batch, ramp, length)} == {NOT_RUN}
    assert batch["All"] == NOTHING


def test_the_files_of_experiments_are_linked_and_the_rest_is_not_yet_run(tmp_path: Path) -> None:
    _write(tmp_path, Run("frost", "cifar10", 0), 0.7, 0.3)
    for run in campaign(["diagnosis"], ["cifar10"]):
        if run.name == "diagnosis-frost-batch-64" and run.seed != 2:
            _write(tmp_path, run, 0.7, 0.5 + run.seed / 10)
    batch, ramp, _ = _lines(tmp_path)
    links = [
        f"[seed {seed}](../benchmarks/results/table1/cifar10-diagnosis-frost-batch-64-seed{seed}.json)"
        for seed in (0, 1)
    ]
    assert batch["runs"] == f"{', '.join(links)}, seed 2 {NOT_RUN}"
    assert batch["New"] == "55.0 ± 7.1 (2)" and ramp["runs"] == NOT_RUN


def test_inlay_is_held_against_its_frozen_backbone_on_common_seeds(tmp_path: Path) -> None:
    _write(tmp_path, Run("inlay", "cifar100", 0), 0.6, 0.5)
    _write(tmp_path, Run("inlay", "cifar100", 1), 0.9, 0.9)
    _write(tmp_path, Run("frozen", "cifar100", 0), 0.7, 0.5)
    *others, frozen = _lines(tmp_path)
    assert {line["likely reason"] for line in others} == {
        "old features held ten times as tight",
        "a third of the learning rate",
    }
    assert frozen["below"] == "Old 10.0, All 5.0 (frozen backbone)"
    assert frozen["runs"].startswith("[seed 0]") and frozen["runs"].endswith(f"seed 1 and 2 {NOT_RUN}")


def test_every_figure_below_print_on_cifar_has_an_experiment(tmp_path: Path) -> None:
    wanted = [run for run in campaign(["table", "ours"], ["cifar10", "cifar100"]) if run.seed == 0]
    hopeless = [run for run in wanted if run.system in ("autonovel", "ncl", "frost", "frost+aff", "frost+amm", "adm")]
    for run in hopeless:
        _write(tmp_path, run, 0.0, 0.0)
    lines = _lines(tmp_path)
    assert len({(line["data set"], line["system"], line["base recipe"]) for line in lines}) == len(hopeless)
    assert all(line["runs"] == NOT_RUN for line in lines)
    _write(tmp_path, Run("adm", "tinyimagenet", 0), 0.0, 0.0)
    assert _lines(tmp_path)[-1]["runs"] == "no experiment planned"
