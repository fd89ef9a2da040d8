import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks import own_images_tables as tables

COMMON = {
    "command": "python -m benchmarks.own_images",
    "commit": "0123456789abcdef-dirty",
    "date": "2030-01-01",
    "hardware": "a machine",
    "versions": {"torch": "2"},
    "data_set": "cifar10",
}


def _pile(estimate: int, low: int, high: int, truth: int = 5) -> dict[str, Any]:
    found = {"estimate": estimate, "low": low, "high": high, "truth": truth}
    return {"sizes": "even", "images": 10, **found, "silhouette": 2, "max_acc": 9, "seconds": 1.0}


def _write(folder: Path, part: str, runs: list[dict[str, Any]]) -> None:
    record = {**COMMON, "part": part, "runs": runs}
    (folder / f"{part}-cifar10.json").write_text(json.dumps(record), encoding="utf-8")


def _cells(section: str, row: int = 0) -> dict[str, str]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()]
    return dict(zip(lines[0], lines[2 + row], strict=True))


def test_the_page_is_up_to_date() -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.with_tables(page, tables.sections(tables.FOLDER)) == page


def test_estimates_near_the_truth_and_covered_truths_are_counted(tmp_path: Path) -> None:
    _write(tmp_path, "count", [{"piles": [_pile(6, 4, 8)]}, {"piles": [_pile(7, 6, 10)]}, {"piles": [_pile(4, 3, 5)]}])
    title, table, *_, source = tables.sections(tmp_path)
    row = _cells(table)
    assert title == "## Number of new classes" and row["data"] == "CIFAR-10"
    assert (row["estimates"], row["within 20 %"], row["interval covers"]) == ("6, 7, 4", "2 of 3", "2 of 3")
    assert (row["silhouette"], row["Max-ACC"]) == ("2, 2, 2", "9, 9, 9")
    assert "0123456789ab-dirty" in source and "own-images/count-cifar10.json" in source


def test_a_network_that_was_asked_for_is_named(tmp_path: Path) -> None:
    _write(tmp_path, "count", [{"piles": [_pile(6, 4, 8)]}])
    record = {**COMMON, "part": "count", "backbone": "resnet8", "runs": [{"piles": [_pile(7, 6, 10)]}]}
    (tmp_path / "count-cifar10-resnet8.json").write_text(json.dumps(record), encoding="utf-8")
    _, table, _, *sources = tables.sections(tmp_path)
    assert [_cells(table, row)["data"] for row in (0, 1)] == ["CIFAR-10", "CIFAR-10, resnet8"]
    assert "own-images/count-cifar10.json" in sources[0] and "own-images/count-cifar10-resnet8.json" in sources[1]


def test_what_a_rule_is_worth_elsewhere_is_told(tmp_path: Path) -> None:
    shares = {"log_error": 0.2231, "within_20_percent": 0.5, "within_root_2": 0.75}
    record = {**COMMON, "part": "count-constants", "transfer": {"cifar100": {"fitted_to": ["tinyimagenet"], **shares}}}
    (tmp_path / "count-constants.json").write_text(json.dumps(record), encoding="utf-8")
    _, table, source = tables.sections(tmp_path)
    assert list(_cells(table).values()) == ["CIFAR-100", "Tiny-ImageNet", "factor of 1.25", "50 %", "75 %"]
    assert "own-images/count-constants.json" in source


def test_a_pile_without_a_new_class_has_no_baselines(tmp_path: Path) -> None:
    pile = {"sizes": "no new class", "truth": 0, "estimate": 0, "low": 0, "high": 0, "seconds": 1.0}
    _write(tmp_path, "count", [{"piles": [pile]}, {"piles": [{**pile, "estimate": 1, "low": 1, "high": 2}]}])
    row = _cells(tables.sections(tmp_path)[1])
    assert (row["within 20 %"], row["interval covers"], row["Max-ACC"]) == ("1 of 2", "1 of 2", "–, –")


def test_a_stage_that_found_nothing_counts_as_wrong(tmp_path: Path) -> None:
    run = {
        "auroc": {"ours": 0.9, "softmax": 0.8, "energy": 0.7},
        "error": 0.05,
        "known_error": 0.06,
        "new_found": 0.5,
        "foreign": {"noise": {"known": 0.0, "new": 0.25, "neither": 0.75}},
        "stage": {"triage": None, "oracle": {"old": 0.9, "new": 0.8, "all": 0.85}},
    }
    _write(tmp_path, "triage", [run])
    _, _, told, _, cost, _, foreign, _ = tables.sections(tmp_path)
    assert _cells(told)["AUROC"] == "90.0" and _cells(told)["error measured"] == "6.0"
    assert (_cells(cost)["New"], _cells(cost)["New, oracle"]) == ("0.0", "80.0")
    assert _cells(foreign)["neither"] == "75.0"


def test_piles_in_which_few_images_are_noticed_are_counted(tmp_path: Path) -> None:
    pile = {"share": 0.02, "new_images": 3, "noticed": True, "noticed_alone": False}
    runs = [
        {"piles": [{**pile, "new_found": 0.5, "known_error": 0.01}]},
        {"piles": [{**pile, "noticed": False, "new_found": 0.7, "known_error": 0.03}]},
    ]
    _write(tmp_path, "few", runs)
    row = _cells(tables.sections(tmp_path)[2])
    assert (row["new images"], row["of the pile"]) == ("3", "2 %")
    assert (row["noticed"], row["noticed, images judged alone"]) == ("1 of 2", "0 of 2")
    assert (row["new found"], row["known taken for something else"]) == ("60.0 ± 14.1", "2.0 ± 1.4")


def test_a_walk_shows_counts_scores_and_times(tmp_path: Path) -> None:
    stage = {"truth": 10, "estimate": 9, "low": 7, "high": 12, "pile": 7000, "known": 1900, "new": 5000, "neither": 100}
    stage["scores"] = {"old": 0.7, "new": 0.55, "all": 0.66}  # type: ignore[assignment]
    commands: dict[str, float] = {
        "doctor labelled": 3,
        "fit labelled --out shop.inlay": 120,
        "discover shop.inlay pile-1": 31,
    }
    commands |= {"discover shop.inlay pile-2 --device cuda": 32.4, "predict shop.inlay test --csv test.csv": 5}
    steps = [{"command": f"inlay {words}", "seconds": seconds} for words, seconds in commands.items()]
    record = {**COMMON, "part": "walk", "images": {"labelled": 36000, "test": 10000}, "steps": steps, "stages": [stage]}
    (tmp_path / "walk-cifar10.json").write_text(json.dumps(record), encoding="utf-8")
    title, _, found, _, times, _ = tables.sections(tmp_path)
    assert title == "## The whole walk on folders"
    row = _cells(found)
    assert (row["new classes"], row["estimate"], row["interval"], row["known"]) == ("10", "9", "7–12", "1,900")
    assert (row["Old"], row["New"], row["All"]) == ("70.0", "55.0", "66.0")
    taken = _cells(times)
    assert (taken["images to fit"], taken["fit"], taken["second discover"]) == ("36,000", "120 s", "32 s")
    assert taken["predictions per second"] == "2,000"


def test_forgetting_shows_estimate_and_truth(tmp_path: Path) -> None:
    runs = [
        {"estimate": 0.05, "uncorrected": 0.03, "truth": 0.07},
        {"estimate": 0.01, "uncorrected": 0.01, "truth": 0.07},
    ]
    _write(tmp_path, "forgetting", runs)
    row = _cells(tables.sections(tmp_path)[1])
    assert (row["estimated drop"], row["true drop"]) == ("5.0, 1.0", "7.0, 7.0")
    assert (row["mean error"], row["within 3 points"]) == ("4.0", "1 of 2")


def _photograph_run(new: float, seconds: float, case: tuple[int, int, int, int]) -> dict[str, Any]:
    scores = {"old": 0.6, "new": new, "all": 0.55, "new_head": 0.8}
    numbers = dict(zip(("known", "labelled", "new", "unlabelled"), case, strict=True))
    times = {"base": 4.2, "stage": seconds}
    return {**numbers, "base": 0.7, "scores": scores, "seconds": times, "bytes_per_class": 5128}


def _write_photographs(folder: Path, name: str, cases: list[tuple[int, int, int, int]], new: list[float]) -> None:
    runs = [
        {"seed": seed, "cases": [_photograph_run(n, 50 + 10 * seed, case) for case in cases]}
        for seed, n in enumerate(new)
    ]
    record = {**COMMON, "data_set": "tinyimagenet", "part": "photographs", "name": name, "cases": cases, "runs": runs}
    (folder / f"photographs-{name}.json").write_text(json.dumps(record), encoding="utf-8")


def test_settings_for_photographs_stand_below_each_other_for_each_case(tmp_path: Path) -> None:
    small, large = (10, 25, 5, 100), (20, 50, 5, 50)
    _write_photographs(tmp_path, "plain", [large, small], [0.5, 0.7])
    _write_photographs(tmp_path, "subspaces", [small], [0.8])
    title, _, weights, table, _, *sources = tables.sections(tmp_path)
    assert title == "## Photographs with the pretrained network" and "ImageNet" in weights
    rows = [_cells(table, row) for row in range(3)]
    assert [(row["known classes"], row["settings"]) for row in rows] == [
        ("20", "plain"),
        ("10", "plain"),
        ("10", "subspaces"),
    ]
    assert [rows[1][head] for head in ("labelled of each", "new classes", "unlabelled of each")] == ["25", "5", "100"]
    assert (rows[0]["Base"], rows[0]["New"], rows[2]["New"]) == ("70.0 ± 0.0", "60.0 ± 14.1", "80.0")
    assert (rows[0]["base stage"], rows[0]["stage"], rows[0]["bytes per class"]) == ("4 s", "55 s", "5,128")
    assert len(table.splitlines()) == 5
    assert [source.split(":")[0] for source in sources] == ["plain", "subspaces"]
    assert "own-images/photographs-plain.json" in sources[0]


def test_the_readme_quotes_the_photographs() -> None:
    runs = json.loads((tables.FOLDER / "photographs-default.json").read_text(encoding="utf-8"))["runs"]
    cases = [case for run in runs for case in run["cases"] if (case["known"], case["new"]) == (20, 5)]
    readme = (tables.ROOT / "README.md").read_text(encoding="utf-8")
    for values in ([case["scores"]["all"] for case in cases], [case["base"] for case in cases]):
        assert f"{100 * statistics.fmean(values):.1f} ± {100 * statistics.stdev(values):.1f} %" in readme
    found = [
        100
        * statistics.fmean(run["new_found"] for run in json.loads((tables.FOLDER / name).read_text("utf-8"))["runs"])
        for name in ("triage-photographs-100.json", "triage-photographs-10.json")
    ]
    assert f"{found[0]:.0f} to {found[1]:.0f} % of them were found" in readme
    assert len(cases) == 5 and {(case["labelled"], case["unlabelled"]) for case in cases} == {(50, 50)}
