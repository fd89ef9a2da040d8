import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import reproducibility
from benchmarks.page import between
from benchmarks.pictures import RESULTS
from benchmarks.reproducibility import CLAIMS, claims_table, reached_table, sections
from benchmarks.results_paper import read_paper
from benchmarks.results_runs import NOTHING, Run, read_runs
from benchmarks.results_tables import PAPER, RUNS

_MERGE = {"max_abs_diff": 1e-6, "parameters_before": 10, "parameters_hybrid": 20, "parameters_after": 10}


def _run(label: str, old: float, new: float, dataset: str = "cifar10", seed: int = 0, **facts: Any) -> Run:
    metrics = {"old": old, "new": new, "all": (old + new) / 2}
    return Run("file", label, False, dataset, seed, "first", 1, "reference", {"metrics": metrics} | facts)


def _verdicts(runs: list[Run]) -> dict[str, tuple[str, str]]:
    rows = [line.strip("|").split("|") for line in claims_table(runs).splitlines()[2:]]
    return {claim.strip(): (verdict.strip(), found.strip()) for claim, verdict, found in rows}


def test_the_page_is_up_to_date() -> None:
    text = reproducibility.PAGE.read_text(encoding="utf-8")
    parts = sections(RUNS, read_paper(PAPER), RESULTS)
    assert text == between(text, reproducibility.BEGIN, reproducibility.END, parts)


def test_without_runs_nothing_is_tested() -> None:
    assert set(_verdicts([]).values()) == {("not tested", NOTHING)}
    assert len(_verdicts([])) == len(CLAIMS)


def test_a_claim_is_judged_on_common_seeds_of_every_data_set_that_was_run() -> None:
    runs = [_run("frost", 0.6, 0.3), _run("frost+aff", 0.7, 0.4), _run("frost+aff", 0.72, 0.4, seed=1)]
    claim = "AFF raises FRoST on old and on new classes"
    assert _verdicts(runs)[claim] == ("held", "CIFAR-10: Old +10.0 (1), New +10.0 (1)")
    runs += [_run("frost", 0.6, 0.3, "cifar100"), _run("frost+aff", 0.7, 0.2, "cifar100")]
    verdict, found = _verdicts(runs)[claim]
    assert verdict == "held on CIFAR-10 only"
    assert found.endswith("CIFAR-100: Old +10.0 (1), New -10.0 (1)")


@pytest.mark.parametrize(("amm", "comparable", "above"), [(0.39, "held", "not held"), (0.37, "not held", "not held")])
def test_comparable_gives_a_point(amm: float, comparable: str, above: str) -> None:
    found = _verdicts([_run("frost+aff", 0.4, 0.4), _run("frost+amm", 0.4, amm)])
    assert found["AMM is comparable to AFF (no more than 1 point below in All)"][0] == comparable
    assert found["AMM is above AFF in All"][0] == above


def test_the_best_needs_all_rivals() -> None:
    rivals = ["autonovel", "restune", "ncl", "dtc", "frost", "frost+aff", "frost+amm"]
    runs = [_run("adm", 0.8, 0.5), *(_run(name, 0.7, 0.5) for name in rivals[1:])]
    claim = "ADM is the best of the paper's systems in All"
    assert _verdicts(runs)[claim][0] == "not tested"
    assert _verdicts([*runs, _run("autonovel", 0.9, 0.6)])[claim] == (
        "not held",
        "CIFAR-10: All: ADM 65.0, the best other (AutoNovel) 75.0",
    )


def test_merges_are_exact_and_free() -> None:
    fine = _run("adm", 0.8, 0.5, merge=_MERGE)
    off = _run("adm", 0.8, 0.5, seed=1, merge=_MERGE | {"max_abs_diff": 0.1, "parameters_after": 11})
    exact, free = "merging changes nothing but rounding", "merging adds no parameter"
    assert (_verdicts([fine])[exact][0], _verdicts([fine])[free][0]) == ("held", "held")
    assert _verdicts([fine, off])[exact] == ("not held", "CIFAR-10: logits differ by 1.0e-01 at most (2)")
    assert _verdicts([fine, off])[free][1] == "CIFAR-10: 1 of 2 networks have as many weights as before"


@pytest.mark.parametrize(("amm", "verdict"), [(0.2, "held"), (0.6, "not held")])
def test_responses_of_branches_are_judged_where_they_were_measured(tmp_path: Path, amm: float, verdict: str) -> None:
    claim = "a branch behind a gate adds less to old images than one without"
    *_, untested = sections(tmp_path, read_paper(PAPER), tmp_path)[-1].splitlines()
    assert untested == f"| {claim} | not tested | {NOTHING} |"
    added = {"IMM": 0.5, "AFF": 0.3, "AMM": amm}
    gates = [{"label": label, "old": {"units": [{"gated": 0.0}, {"gated": 2 * mean}]}} for label, mean in added.items()]
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    (pictures / "magnitude-cifar10.json").write_text(json.dumps({"gates": gates}), encoding="utf-8")
    *_, tested = sections(tmp_path, read_paper(PAPER), pictures)[-1].splitlines()
    assert tested == f"| {claim} | {verdict} | CIFAR-10: mean largest response IMM 0.5, AFF 0.3, AMM {amm} |"


def test_a_figure_is_reached_or_short() -> None:
    paper = read_paper(PAPER)
    shown = reached_table([_run("adm", 0.9, 0.6), _run("frost", 0.5, 0.5), _run("inlay", 0.9, 0.8)], paper)
    by_system = {line.split("|")[1].strip(): line for line in shown.splitlines()[2:]}
    assert "| 65.2 | 75.0 (1), reached | – |" in by_system["ADM"]
    assert "| 63.4 | 50.0 (1), [13.4 short](docs/results.md#figures-below-print) | – |" in by_system["FRoST"]
    assert "| – | 85.0 (1) | – |" in by_system["inlay"]


def test_every_run_that_is_named_in_a_claim_can_be_made() -> None:
    """A misspelt variant would leave its claim untested for ever."""
    from inlay.bench.systems import SYSTEMS
    from inlay.bench.variants import GROUPS

    names = [*SYSTEMS, *(variant.name for group in GROUPS.values() for variant in group)]
    runs = [_run(name, 0.5 + 0.01 * index, 0.5, merge=_MERGE) for index, name in enumerate(names)]
    assert all(verdict != "not tested" for verdict, _ in _verdicts(runs).values())


def test_committed_runs_are_read() -> None:
    assert {run.file for run in read_runs(RUNS)} <= {path.name for path in RUNS.glob("*.json")}
    assert all(json.loads((RUNS / run.file).read_text())["commit"] for run in read_runs(RUNS))
