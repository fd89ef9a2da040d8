import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks import results_tables
from benchmarks.results_cost import cost_section
from benchmarks.results_heads import released_section, separate_section
from benchmarks.results_main import main_sections
from benchmarks.results_paper import AVERAGE, DATASETS, REFERENCES, SYSTEMS, read_paper
from benchmarks.results_provenance import provenance
from benchmarks.results_runs import FIRST, NOTHING, figure, harmonic, mean, read_runs, row, scores
from benchmarks.results_settings import split_sections, step_sections
from benchmarks.results_variants import GROUPS, variant_sections

from inlay.bench import systems
from inlay.bench.datasets import BENCHMARKS
from inlay.errors import InlayError
from result_records import metrics as _metrics
from result_records import record as _record
from result_records import rows as _rows

PAPER = read_paper(results_tables.PAPER)
CIFAR10, CIFAR100, TINY, MEAN = range(1, 5)


def _write(folder: Path, *records: dict[str, Any]) -> Path:
    for index, record in enumerate(records):
        (folder / f"{index:02}-{record['method']}.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def _line(section: str, **wanted: str) -> dict[str, str]:
    keys = {name.replace("_", " "): value for name, value in wanted.items()}
    (found,) = [cells for cells in _rows(section) if keys.items() <= cells.items()]
    return found


def _figures(cells: dict[str, str], names: Sequence[str]) -> list[str]:
    return [cells[name] for name in names]


OURS = ("Old, ours", "New, ours", "All, ours", "Harmonic, ours")


def test_the_page_shows_the_runs() -> None:
    page = results_tables.PAGE.read_text(encoding="utf-8")
    parts = results_tables.whole(results_tables.RUNS, results_tables.TUNING, PAPER)
    assert results_tables.with_tables(page, parts) == page


@pytest.mark.parametrize(
    ("folder", "label", "title"),
    [
        (results_tables.RUNS, "adm", "ADM, ours"),
        (results_tables.RUNS, "kmeans", "k-means on frozen features"),
        (results_tables.RUNS, "inlay", "`inlay`"),
        (results_tables.TUNING, "inlay-before", "`inlay`, before its last change"),
    ],
)
def test_the_readme_quotes_the_runs(folder: Path, label: str, title: str) -> None:
    readme = (results_tables.ROOT / "README.md").read_text(encoding="utf-8")
    runs = [run for run in read_runs(folder) if (run.base, run.steps, run.split) == ("reference", 1, FIRST)]
    for dataset, name in (("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100")):
        all_classes = figure(scores(row(runs, label=label, dataset=dataset), "all"))
        section = readme[readme.index("### What was reproduced") : readme.index("## All pages")]
        assert _line(section, **{"": title})[name] == all_classes.replace("(1)", "(1 seed)").replace("(3)", "(3 seeds)")


def test_the_readme_says_where_a_frozen_network_was_as_good() -> None:
    runs = [
        run for run in read_runs(results_tables.RUNS) if (run.base, run.split, run.steps) == ("reference", FIRST, 1)
    ]
    frozen, ours = (
        [run.facts["metrics"]["all"] for run in row(runs, label=label, dataset="cifar100")]
        for label in ("frozen", "inlay")
    )
    readme = (results_tables.ROOT / "README.md").read_text(encoding="utf-8")
    assert f"a frozen network is as good on CIFAR-100 ({100 * frozen[0]:.1f}, one seed)" in readme
    assert len(frozen) == 1 and abs(frozen[0] - ours[0]) < 0.005


def test_runs_that_decided_settings_are_shown_with_what_they_changed(tmp_path: Path) -> None:
    command = "inlay bench table1 --split-seeds 1 --base-set base.training.epochs=9 --set a.b=1 --set c=x"
    recipe = "cross-entropy 1 on weak views; 60 epochs, batch 128, learning rate 0.1, step at 0.5, 0.8, weight decay 0"
    decided = _record(name="try", split="seed 1", command=command, base_recipe=recipe)
    for folder in ("runs", "tuning", "nothing"):
        (tmp_path / folder).mkdir()
    runs, tuning = tmp_path / "runs", _write(tmp_path / "tuning", decided)
    *_, shown, told = results_tables.whole(runs, tuning, PAPER)
    (cells,) = _rows(shown)
    assert cells["changed"] == "`a.b=1`, `c=x`" and cells["base stage"] == "weak views, 60 epochs, decays at 0.5, 0.8"
    assert cells["classes"] == "random split 1" and command in told
    assert (cells["Old"], cells["New"], cells["base classes"]) == ("80.0 (1)", "50.0 (1)", "90.0 (1)")
    assert results_tables.whole(runs, tmp_path / "nothing", PAPER) == results_tables.sections(runs, PAPER)


@pytest.mark.parametrize("stale", [False, True])
def test_the_check_fails_on_a_stale_page_and_writing_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: bool
) -> None:
    page = tmp_path / "results.md"
    page.write_text(f"before\n{results_tables.BEGIN}\n\n{results_tables.END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(results_tables, "PAGE", page)
    monkeypatch.setattr(results_tables, "RUNS", _write(tmp_path, _record()))
    monkeypatch.setattr("sys.argv", ["results_tables"])
    results_tables.main()
    assert page.read_text(encoding="utf-8").startswith("before\n") and page.read_text("utf-8").endswith("\nafter\n")
    if stale:
        _write(tmp_path, _record(metrics=_metrics(0.7, 0.5)))
    monkeypatch.setattr("sys.argv", ["results_tables", "--check"])
    with pytest.raises(SystemExit) as exit_:
        results_tables.main()
    assert exit_.value.code == stale


def test_a_command_that_cannot_average_says_so_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, _record(seed=0), _record(seed=1, schedule="200 epochs"))
    monkeypatch.setattr(results_tables, "RUNS", tmp_path)
    monkeypatch.setattr("sys.argv", ["results_tables", "--check"])
    with pytest.raises(SystemExit, match=r"^Error: 00-adm\.json and 01-adm\.json disagree in schedule"):
        results_tables.main()


def test_figures_are_mean_and_sample_deviation() -> None:
    # Deviations of -3, -1 and 4 points: sqrt(26 / 2) = 3.606.
    assert figure([0.60, 0.62, 0.67]) == "63.0 ± 3.6 (3)"
    assert figure([None, 0.625]) == "62.5 (1)"
    assert figure([]) == figure([None]) == NOTHING


def test_the_harmonic_mean_and_the_mean() -> None:
    assert harmonic(0.6, 0.3) == pytest.approx(0.4)
    assert harmonic(0.0, 0.0) == 0 and harmonic(0.5, None) is None
    assert mean([0.2, 0.4]) == pytest.approx(0.3)
    assert mean([0.2, None]) is None and mean([]) is None


def test_table_1_puts_printed_figures_beside_ours(tmp_path: Path) -> None:
    runs = read_runs(
        _write(
            tmp_path,
            _record(seed=0, metrics=_metrics(0.8, 0.4)),
            _record(seed=1, metrics=_metrics(0.7, 0.3)),
            _record(seed=2, metrics=_metrics(None, None)),
            _record("inlay", base="ours", base_recipe="ours", metrics=_metrics(0.9, 0.9)),
            _record("ceiling", metrics=_metrics(0.9, None, all=0.9)),
        )
    )
    section = main_sections(runs, PAPER, "reference")[CIFAR10]
    lines = _rows(section)
    assert [cells["system"] for cells in lines] == [*SYSTEMS.values(), *REFERENCES.values()]
    adm = _line(section, system="ADM")
    assert _figures(adm, ("Old, paper", "New, paper", "All, paper")) == ["78.4", "51.9", "65.2"]
    # Harmonic means 8/15 and 0.42: 53.33 and 42, 8.01 apart by sqrt(2) times the deviation.
    assert _figures(adm, OURS) == ["75.0 ± 7.1 (2)", "35.0 ± 7.1 (2)", "55.0 ± 7.1 (2)", "47.7 ± 8.0 (2)"]
    assert set(_figures(_line(section, system="inlay"), OURS)) == {NOTHING}
    assert _figures(_line(section, system=REFERENCES["ceiling"]), OURS) == ["90.0 (1)", NOTHING, "90.0 (1)", NOTHING]
    ours = main_sections(runs, PAPER, "ours")[CIFAR10]
    assert [(cells["system"], cells["All, ours"]) for cells in _rows(ours)] == [("inlay", "90.0 (1)")]


def test_the_average_takes_the_seeds_that_every_data_set_has(tmp_path: Path) -> None:
    records = [
        _record(seed=seed, dataset=dataset, metrics=_metrics(old, 0.3), base_recipe=dataset)
        for dataset, olds in (("cifar10", (0.9, 0.6)), ("cifar100", (0.6, 0.3)), ("tinyimagenet", (0.3,)))
        for seed, old in enumerate(olds)
    ]
    section = main_sections(read_runs(_write(tmp_path, *records)), PAPER, "reference")[MEAN]
    adm = _line(section, system="ADM")
    assert adm["Old, ours"] == "60.0 (1)" and adm["Old, paper"] == "68.0"
    # (2·.9·.3/1.2 + 2·.6·.3/.9 + .3) / 3
    assert adm["Harmonic, ours"] == "38.3 (1)"
    assert "\n3 runs on" in section


def test_base_accuracies_show_who_started_elsewhere(tmp_path: Path) -> None:
    elsewhere = _record("inlay", base_metrics=_metrics(0.9, None, all=0.95))
    records = [_record("frost"), _record("adm"), elsewhere, _record("adm", seed=1)]
    section = main_sections(read_runs(_write(tmp_path, *records)), PAPER, "reference")[CIFAR10]
    assert "seed 0: 90.00 (FRoST, ADM) and 95.00 (inlay); seed 1: 90.00. Recipe: 60 epochs." in section


@pytest.mark.parametrize("key", ["base_recipe", "schedule", "settings"])
def test_runs_that_were_not_made_alike_are_not_averaged(tmp_path: Path, key: str) -> None:
    runs = read_runs(_write(tmp_path, _record(seed=0), _record(seed=1) | {key: {"other": 1}}))
    with pytest.raises(InlayError, match=rf"00-adm\.json and 01-adm\.json disagree in {key}"):
        row(runs, label="adm")
    assert len(row(runs, label="adm", seed=1)) == 1


def test_a_seed_counts_once_in_a_row(tmp_path: Path) -> None:
    runs = read_runs(_write(tmp_path, _record(), _record(split="seed 1"), _record()))
    with pytest.raises(InlayError, match=r"00-adm\.json and 02-adm\.json are the same run"):
        row(runs, label="adm")


def test_systems_of_a_table_share_their_base_recipe(tmp_path: Path) -> None:
    runs = read_runs(_write(tmp_path, _record("frost"), _record("adm", base_recipe="other")))
    with pytest.raises(InlayError, match=r"00-frost\.json and 01-adm\.json disagree in base_recipe"):
        main_sections(runs, PAPER, "reference")


@pytest.mark.parametrize("change", [{"dataset": "mnist"}, {"base": "other"}, {"method": "gcd"}])
def test_a_run_that_no_table_has_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    (value,) = change.values()
    with pytest.raises(InlayError, match=f"says '{value}', which no table has"):
        results_tables.sections(_write(tmp_path, _record() | change), PAPER)


def test_a_record_must_be_whole(tmp_path: Path) -> None:
    record = _record()
    del record["base"]
    with pytest.raises(InlayError, match=r"00-adm\.json has no 'base'"):
        read_runs(_write(tmp_path, record))


def test_separate_heads_are_scored_in_three_ways(tmp_path: Path) -> None:
    metrics, calibrated = _metrics(0.9, 0.0, new_head=0.6), _metrics(0.8, 0.4)
    section = separate_section(
        read_runs(_write(tmp_path, _record("dtc", metrics=metrics, calibrated=calibrated), _record("ncl")))
    )
    assert len(_rows(section)) == 4 * len(DATASETS)
    dtc = _line(section, system="DTC", data_set="CIFAR-10")
    assert list(dtc.values())[2:] == [
        *("90.0 (1)", "0.0 (1)", "45.0 (1)"),
        *("80.0 (1)", "40.0 (1)", "60.0 (1)"),
        "60.0 (1)",
    ]
    assert _line(section, system="NCL", data_set="CIFAR-10")["All, calibrated"] == NOTHING


def test_released_scores_are_shown_where_they_exist(tmp_path: Path) -> None:
    runs = read_runs(_write(tmp_path, _record("frost", released=_metrics(0.7, 0.2)), _record("adm")))
    (section,) = released_section(runs)
    (cells,) = _rows(section)
    assert cells["system"] == "FRoST" and cells["All, right"] == "65.0 (1)" and cells["All, as released"] == "45.0 (1)"
    assert released_section(runs[1:]) == []


def _stages(*groups: dict[str, float]) -> list[dict[str, Any]]:
    return [{"metrics": _metrics(0.5, 0.5, all=group.pop("all"), groups=group)} for group in groups]


def test_several_steps_have_a_line_for_each_stage(tmp_path: Path) -> None:
    stages = _stages(
        {"all": 0.7, "base": 0.8, "stage1": 0.4}, {"all": 0.6, "base": 0.75, "stage1": 0.35, "stage2": 0.2}
    )
    record = _record("frost", dataset="cifar100", steps=2, stages=stages, metrics=stages[-1]["metrics"])
    other = record | {"method": "ncl", "base": "ours"}
    at_once = record | {"method": "ceiling", "stages": []}
    sections = step_sections(read_runs(_write(tmp_path, record, other, at_once)))
    titles = [section.splitlines()[0].removeprefix("### ") for section in sections]
    assert titles == [
        "CIFAR-100, 2 steps, reference base recipe",
        "Tiny-ImageNet, 2 steps, reference base recipe",
        "CIFAR-100, 5 steps, reference base recipe",
        "CIFAR-100, 2 steps, our base recipe",
    ]
    columns = ("Old", "New-1", "New-2", "All")
    first, second = (_line(sections[0], system="FRoST", after_stage=stage) for stage in ("1", "2"))
    assert _figures(first, columns) == ["80.0 (1)", "40.0 (1)", NOTHING, "70.0 (1)"]
    assert _figures(second, columns) == ["75.0 (1)", "35.0 (1)", "20.0 (1)", "60.0 (1)"]
    assert set(_figures(_line(sections[0], system="ADM", after_stage="2"), columns)) == {NOTHING}
    assert [cells["All"] for cells in _rows(sections[0])][-2:] == [NOTHING, "60.0 (1)"]
    assert {cells["system"] for cells in _rows(sections[3])} == {"FRoST", "ADM", "inlay", "NCL"}


def test_random_splits_have_a_line_each_and_their_mean(tmp_path: Path) -> None:
    records = [
        _record(seed=seed, split=split, metrics=_metrics(old, 0.5))
        for split, seed, old in (("seed 1", 0, 0.9), ("seed 1", 1, 0.7), ("seed 2", 0, 0.6), (FIRST, 0, 0.1))
    ]
    section = split_sections(read_runs(_write(tmp_path, *records)))[0]
    assert [cells["Old"] for cells in _rows(section) if cells["system"] == "ADM"] == [
        "80.0 ± 14.1 (2)",
        "60.0 (1)",
        "70.0 ± 14.1 (2)",
    ]
    assert _line(section, system="FRoST") == dict.fromkeys(_rows(section)[0], NOTHING) | {"system": "FRoST"}


def test_variants_are_listed_by_group_and_the_rest_apart(tmp_path: Path) -> None:
    records = [
        _record(),
        _record(seed=0, split="seed 1"),
        _record("inlay", base="ours"),
        _record("inlay", base="reference"),
        _record(name="ablation-no-kd", metrics=_metrics(0.6, 0.4)),
        _record(name="trial", split="seed 3", steps=2),
        _record("frost", command="inlay bench table1 --full-length --seeds 0", schedule="200 epochs"),
    ]
    sections = variant_sections(read_runs(_write(tmp_path, *records)), PAPER)
    by_title = {section.splitlines()[0].removeprefix("### "): section for section in sections}
    assert list(by_title) == [*GROUPS, "Other variants"]
    parts = by_title["Parts of ADM"]
    assert _line(parts, run="ablation-no-kd")["CIFAR-10 All"] == "50.0 (1)"
    assert _line(parts, run="ablation-no-kd")["CIFAR-100 All"] == NOTHING
    assert _line(parts, run="adm")["CIFAR-10 All"] == "65.0 (1)"
    assert _line(parts, run="ablation-no-triplet")["setting"] == NOTHING
    ladder = by_title["The ladder from ADM to inlay"]
    assert _line(ladder, run="printed")["CIFAR-100 New"] == "45.7"
    assert [cells["setting"] for cells in _rows(ladder) if cells["run"] == "inlay"] == [
        "reference base recipe",
        "our base recipe",
    ]
    assert _line(by_title["Other variants"], run="trial")["setting"] == "reference base recipe, 2 steps, split seed 3"
    length = by_title["Compressed schedule against full length"]
    assert _line(length, run="frost-full-length")["CIFAR-10 All"] == "65.0 (1)"
    assert _line(length, run="frost")["CIFAR-10 All"] == NOTHING


def test_cost_is_told_apart_by_hardware(tmp_path: Path) -> None:
    seconds = {"base": 30.0, "stages": [1.0, 2.0]}
    records = [
        _record(seed=0),
        _record(seed=1, seconds={"base": 20.0, "stages": [30.0]}),
        _record(seed=2, hardware="a CPU", parameters=3000),
        _record("inlay", dataset="cifar100", steps=2, seconds=seconds),
        _record("ceiling", stored_bytes=None, seconds={"base": 90.0, "stages": []}),
        _record(name="gate-aff"),
    ]
    lines = _rows(cost_section(read_runs(_write(tmp_path, *records))))
    shown = [list(cells.values()) for cells in lines]
    recipe = "reference"
    assert shown == [
        ["CIFAR-10", "1", "ADM", recipe, "3,000", "400", "10", "20", "1", "a CPU"],
        ["CIFAR-10", "1", "ADM", recipe, "1,000", "400", "15", "25", "2", "a GPU"],
        ["CIFAR-10", "1", REFERENCES["ceiling"], recipe, "1,000", NOTHING, "90", NOTHING, "1", "a GPU"],
        ["CIFAR-100", "2", "inlay", recipe, "1,000", "40", "30", "3", "1", "a GPU"],
    ]


def test_every_table_says_where_it_comes_from(tmp_path: Path) -> None:
    runs = read_runs(_write(tmp_path, _record(seed=0), _record(seed=1, date="2030-01-03", commit="f" * 40)))
    told = provenance(runs)
    assert told.startswith("2 runs on a GPU, 2030-01-01 to 2030-01-03, commits 0123456789ab-dirty, ffffffffffff; ")
    assert "\ninlay bench table1 --data ROOT --methods adm --datasets cifar10 --seeds 0,1\n" in told
    assert "(../benchmarks/results/table1)" in told


def test_every_section_is_whole_and_says_where_it_comes_from(tmp_path: Path) -> None:
    above_print = _record(metrics=_metrics(0.8, 0.6))
    *shown, heading, missing = results_tables.sections(_write(tmp_path, above_print), PAPER)
    assert [section for section in shown if section.startswith("## ")] == [
        "## Table 1, reference base recipe",
        "## Cost",
    ]
    assert heading == "## Not run yet" and _rows(missing)
    for section in shown:
        if "| --- |" in section:
            assert _rows(section)
            assert len(re.findall(r"^1 run on", section, flags=re.MULTILINE)) == 1


def test_printed_figures_agree_but_where_they_are_known_not_to() -> None:
    known = {
        "cifar10": {"FRoST+AFF": 64.4, "FRoST+AMM": 64.7},
        "cifar100": {"FRoST": 60.84, "FRoST+AFF": 61.56, "FRoST+AMM": 61.22, "ADM": 63.46},
        "tinyimagenet": {"FRoST": 52.42},
        AVERAGE: {"FRoST+AMM": 60.0},
    }
    for dataset, cells in known.items():
        found = [re.fullmatch(r"(\S+) All \S+ \(.* ([\d.]+)\)", text) for text in PAPER.contradictions(dataset)]
        assert {match[1]: float(match[2]) for match in found if match} == pytest.approx(cells, abs=0.006)


def test_printed_figures_are_complete() -> None:
    assert list(PAPER.systems) == [label for label in SYSTEMS if label != "inlay"]
    for printed in PAPER.systems.values():
        assert list(printed) == [*DATASETS, AVERAGE]
    assert PAPER.shown("frost", "cifar100", "harmonic") == "53.6"
    assert PAPER.shown("frost", "cifar10", "harmonic") == "60.4"
    assert PAPER.shown("inlay", "cifar10", "all") == NOTHING


def test_the_tables_have_the_systems_and_data_sets_of_the_benchmark() -> None:
    assert list(SYSTEMS) == list(systems.TABLE)
    assert [*SYSTEMS, *REFERENCES] == list(systems.SYSTEMS)
    assert list(DATASETS) == list(BENCHMARKS)
