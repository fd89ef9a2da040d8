import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks import reproducibility, results_table2, results_tables
from benchmarks.pictures import IMAGES
from benchmarks.results_runs import NOTHING
from benchmarks.results_table2 import BEGIN, END, outdated
from benchmarks.table2_claims import CLAIMS, claims_table, reached_table
from benchmarks.table2_claims import sections as claim_sections
from benchmarks.table2_curves import curve_images, curve_pictures
from benchmarks.table2_runs import HOSTS, PRINTED, Run, read_runs
from benchmarks.table2_tables import CONTROLS, EMPTY, fair_section, published_section, sections

from inlay.bench.table2 import CONTROLS as RUNNABLE
from inlay.bench.table2 import Choice, table2
from inlay.errors import InlayError
from inlay.increments.systems.catalogue import FAIR, PUBLISHED

IMAGE_FOLDER = Path("images")
RECIPE = {"backbone": "resnet32", "stage": {"epochs": 160}, "branch": {"gate": "full"}}


def _record(method: str = "icarl", control: str = "plain", table: str = "A", **more: Any) -> dict[str, Any]:
    average = more.get("average", 0.6)
    stages = more.get("stages", 10)
    curve = [{"cnn": average, "nme": average, "groups": [], "seconds": 1.0} for _ in range(stages + 1)]
    return {
        "method": method,
        "name": None,
        "table": table,
        "control": control,
        "stages": stages,
        "base_classes": 50,
        "order": "numpy-1993",
        "seed": 0,
        "dataset": "cifar100",
        "curve": curve,
        "average": average,
        "last": 0.5,
        "forgetting": 0.2,
        "nme_average": average,
        "nme_last": 0.4,
        "parameters": 1000,
        "parameters_base": 1000,
        "memory": 2000,
        "merge": 1e-6 if control == "amm" else None,
        "recipe": {**RECIPE, "branch": {"gate": control}},
        "settings": {"branch.gate": control},
        "seconds": 60.0,
        "hardware": "a GPU",
        "commit": "abc",
        "command": f"inlay bench table2 --methods {method} --orders {more.get('order', 'numpy-1993')}",
        "date": "2030-01-01",
    } | more


def _runs(*records: dict[str, Any]) -> list[Run]:
    return [Run(f"{index:02}.json", record) for index, record in enumerate(records)]


def _fair(control: str, average: float, order: str = "numpy-1993", stages: int = 10, host: str = "podnet") -> Any:
    return _record(host, control, "B", average=average, order=order, stages=stages)


def _rows(text: str) -> list[dict[str, str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    columns, _, *cells = lines
    return [dict(zip(columns, line, strict=True)) for line in cells]


def _line(text: str, **wanted: str) -> dict[str, str]:
    keys = {name.replace("_", " "): value for name, value in wanted.items()}
    (found,) = [cells for cells in _rows(text) if keys.items() <= cells.items()]
    return found


def _verdicts(runs: list[Run]) -> dict[str, tuple[str, str]]:
    cells = _rows(claims_table(runs))
    return {claim.text: (cells[index]["verdict"], cells[index]["found"]) for index, claim in enumerate(CLAIMS)}


def _claim(start: str) -> str:
    (text,) = [claim.text for claim in CLAIMS if claim.text.startswith(start)]
    return text


def test_the_pages_show_the_runs() -> None:
    assert outdated(results_table2.RUNS, results_tables.PAGE, reproducibility.PAGE, IMAGES) == {}


def test_without_runs_the_pages_say_so() -> None:
    assert sections([], IMAGE_FOLDER) == claim_sections([]) == [EMPTY]
    assert curve_pictures([]) == {}


@pytest.mark.parametrize(
    ("average", "verdict"), [(0.5100, "-2.8, short"), (0.5180, "-2.0, reached"), (0.7, "+16.2, reached")]
)
def test_a_figure_is_reached_within_its_tolerance(average: float, verdict: str) -> None:
    """Printed are 53.78, plus or minus 2, by the nearest mean."""
    runs = _runs(_record(nme_average=average, average=0.9, order="icarl-1993"))
    line = _line(published_section(runs, 10), system="iCaRL")
    assert (line["head"], line["printed"], line["within"]) == ("NME", "53.78", "± 2")
    assert (line["ours"], line["verdict"]) == (f"{100 * average:.2f} (1)", verdict)
    assert (line["other head"], line["last"], line["forgetting"]) == ("CNN 90.00 (1)", "40.00 (1)", "20.00 (1)")


def test_what_has_no_tolerance_is_reported() -> None:
    runs = _runs(_record("necil", nme_average=None, average=0.62, settings={"stage.epochs": "30"}, order="natural"))
    line = _line(published_section(runs, 10), system="NECIL")
    assert (line["verdict"], line["within"], line["other head"]) == ("+0.9", NOTHING, NOTHING)
    assert line["changed"] == "stage.epochs=30"


def test_table_a_has_every_printed_row_and_averages_orders() -> None:
    runs = _runs(
        _record("afc", average=0.6, order="icarl-1993"),
        _record("afc", average=0.64, order="podnet-2"),
        _record("afc", "amm", order="icarl-1993"),
    )
    ten, many = published_section(runs, 10), published_section(runs, 25)
    titles = [line["system"] for line in _rows(ten)]
    assert titles[:6] == ["iCaRL", "iCaRL+AMM", "PODNet", "PODNet+AMM", "AFC", "AFC+AMM"]
    assert "DER" in titles and "DER" not in [line["system"] for line in _rows(many)]
    # 60 and 64: 2 away from their mean each, so a deviation of sqrt(8).
    afc = _line(ten, system="AFC")
    assert (afc["ours"], afc["orders"]) == ("62.00 ± 2.83 (2)", "icarl-1993, podnet-2")
    assert _line(ten, system="AFC+AMM")["ours"] == "60.00 (1)"
    assert _line(many, system="AFC")["ours"] == NOTHING


def test_a_printed_figure_is_held_against_runs_in_its_own_orders_alone() -> None:
    """Printed for iCaRL are 53.78 in the orders of PODNet; that of AANets is another."""
    runs = _runs(_record(nme_average=0.5398, order="podnet-3"), _record(nme_average=0.4, order="numpy-1993"))
    section = published_section(runs, 10)
    own, other = (_line(section, system=title) for title in ("iCaRL", "iCaRL, in other orders"))
    assert (own["ours"], own["orders"], own["verdict"]) == ("53.98 (1)", "podnet-3", "+0.2, reached")
    assert (other["ours"], other["printed"], other["verdict"]) == ("40.00 (1)", NOTHING, NOTHING)
    assert _line(reached_table(runs), system="iCaRL")["10 stages, ours"] == "53.98 (1), reached"
    equal = "\n\n".join(sections(_runs(_record("der", base_classes=0, order="natural")), IMAGE_FOLDER))
    assert "DER, in other orders" in equal.split("#### Ten equal stages")[1].split("###")[0]


def test_a_network_that_goes_on_while_another_is_scored_has_a_line() -> None:
    record = _record("foster", average=0.7)
    for stage in record["curve"][1:]:
        stage["carried"] = 0.59
    lines = _rows(published_section(_runs(record), 10))
    (carried,) = [line for line in lines if line["system"] == "FOSTER, the network that goes on"]
    assert carried["ours"] == "60.00 (1)"


def test_ten_equal_stages_are_apart() -> None:
    runs = _runs(_record("der", average=0.74, base_classes=0, order="icarl-1993"))
    text = "\n\n".join(sections(runs, IMAGE_FOLDER))
    equal = text.split("#### Ten equal stages")[1].split("###")[0]
    assert _line(equal, system="DER")["verdict"] == "-1.4"
    assert _line(published_section(runs, 10), system="DER")["ours"] == NOTHING


def test_deltas_are_paired_by_class_order() -> None:
    runs = _runs(
        _fair("full", 0.60),
        _fair("full", 0.62, "icarl-1993"),
        _fair("full", 0.70, "podnet-2"),
        _fair("amm", 0.61),
        _fair("amm", 0.64, "icarl-1993"),
        _fair("imm", 0.62),
        _fair("imm", 0.63, "icarl-1993"),
    )
    _, rows, deltas, *_ = fair_section(runs, "podnet", IMAGE_FOLDER)
    line = _line(rows, trained_in_later_stages=CONTROLS["full"])
    assert (line["CNN, numpy-1993"], line["CNN, podnet-2"], line["mean"]) == ("60.00", "70.00", "64.00 ± 5.29 (3)")
    above = _line(deltas, AMM_minus=CONTROLS["full"], head="CNN")
    assert (above["numpy-1993"], above["icarl-1993"], above["podnet-2"]) == ("+1.00", "+2.00", NOTHING)
    assert (above["mean"], above["verdict"]) == ("+1.50", "positive")
    mixed = _line(deltas, AMM_minus=CONTROLS["imm"], head="CNN")
    assert (mixed["numpy-1993"], mixed["icarl-1993"], mixed["verdict"]) == ("-1.00", "+1.00", "not positive")


def test_growth_of_the_delta_is_that_of_orders_at_both_numbers_of_stages() -> None:
    records = [
        _fair("full", 0.60),
        _fair("amm", 0.61),
        _fair("full", 0.50, stages=25),
        _fair("amm", 0.53, stages=25),
        _fair("full", 0.50, "podnet-2", stages=25),
        _fair("amm", 0.40, "podnet-2", stages=25),
    ]
    text = "\n\n".join(fair_section(_runs(*records), "podnet", IMAGE_FOLDER))
    assert "Delta of AMM at 25 stages minus delta at 10: +2.00 (numpy-1993), mean +2.00." in text
    verdicts = _verdicts(_runs(*records))
    assert verdicts[_claim("the gain of AMM grows")] == ("held", "PODNet: +2.00 (numpy-1993), mean +2.00")
    verdict, found = verdicts[_claim("AMM raises")]
    assert verdict == "held on PODNet at 10 only"
    assert found.startswith("PODNet at 25: +3.00 (numpy-1993), -10.00 (podnet-2), mean -3.50; PODNet at 10: +1.00")


def test_a_host_that_was_not_run_says_so() -> None:
    assert fair_section(_runs(_fair("full", 0.6)), "afc", IMAGE_FOLDER) == ["#### AFC", EMPTY]


def test_amm_is_compared_with_aanets_in_the_same_order() -> None:
    claim = _claim("AMM is above AANets")
    amm, rival = _record("podnet", "amm", average=0.64), _record("podnet+aanets", average=0.65)
    assert _verdicts(_runs(amm, {**rival, "order": "natural"}))[claim] == ("not tested", NOTHING)
    assert _verdicts(_runs(amm, rival))[claim] == ("not held", "PODNet at 10: -1.00 (numpy-1993), mean -1.00")


def test_amm_and_aanets_on_icarl_are_compared_by_nearest_means_in_the_order_that_both_have() -> None:
    runs = _runs(
        _record("icarl", "amm", average=0.9, nme_average=0.62),
        _record("icarl", "amm", average=0.9, nme_average=0.10, order="icarl-1993"),
        _record("icarl+aanets", average=0.1, nme_average=0.60),
    )
    verdict = ("held", "iCaRL at 10: +2.00 (numpy-1993), mean +2.00")
    assert _verdicts(runs)[_claim("AMM is above AANets")] == verdict


def test_runs_of_a_plain_command_are_enough_to_compare_amm_with_aanets() -> None:
    records = [_record(run.method, run.control, stages=run.stages, order=run.order) for run in table2(Choice("A"))]
    (claim,) = [claim for claim in CLAIMS if claim.text.startswith("AMM is above AANets")]
    places = {f"{host} at {stages}" for host in ("iCaRL", "PODNet") for stages in (10, 25)}
    assert claim.test(_runs(*records)).keys() == places


def test_amm_is_compared_with_the_adapters_of_necil() -> None:
    runs = _runs(
        _fair("adapters", 0.60, host="necil"), _fair("full", 0.5, host="necil"), _fair("amm", 0.62, host="necil")
    )
    claim = _claim("AMM is above the re-parameterisation")
    assert _verdicts(runs)[claim] == ("held", "NECIL at 10: +2.00 (numpy-1993), mean +2.00")
    assert _verdicts(runs)[_claim("control: AMM is above branches without")][0] == "not tested"


def test_growth_of_networks_and_inexact_merges_are_found() -> None:
    fine = _fair("amm", 0.6)
    grown = {**_fair("amm", 0.6, "podnet-2"), "parameters": 1001, "merge": 0.1}
    size, exact = _claim("AMM adds no parameters"), _claim("merging changes nothing")
    assert (_verdicts(_runs(fine))[size][0], _verdicts(_runs(fine))[exact][0]) == ("held", "held")
    found = _verdicts(_runs(fine, grown))
    assert found[size] == ("not held", "PODNet: 1 of 2 networks have not grown")
    assert found[exact] == ("not held", "PODNet: scores differ by 1.0e-01 at most")


def test_without_runs_no_claim_is_tested() -> None:
    assert set(_verdicts([]).values()) == {("not tested", NOTHING)}


def test_figures_of_the_claims_page() -> None:
    shown = reached_table(
        _runs(_record("der", average=0.70, order="icarl-1993"), _record("foster", average=0.67, order="numpy-1993"))
    )
    assert _line(shown, system="DER")["10 stages, ours"] == "70.00 (1), 2.81 short"
    assert _line(shown, system="FOSTER")["10 stages, ours"] == "67.00 (1), reached"
    assert _line(shown, system="DER")["25 stages, printed"] == NOTHING


def test_runs_that_were_not_made_alike_are_not_compared() -> None:
    shorter = {**RECIPE, "stage": {"epochs": 10}}
    with pytest.raises(InlayError, match=r"00\.json and 01\.json disagree in recipe"):
        published_section(_runs(_record(), _record(order="podnet-2", recipe=shorter)), 10)
    with pytest.raises(InlayError, match=r"01\.json and 00\.json disagree in stage"):
        fair_section(_runs(_fair("full", 0.6), _fair("amm", 0.6) | {"recipe": shorter}), "podnet", IMAGE_FOLDER)
    with pytest.raises(InlayError, match="are the same run"):
        published_section(_runs(_record(), _record()), 10)


@pytest.mark.parametrize("change", [{"method": "gcd"}, {"dataset": "cifar10"}, {"stages": 5}, {"base_classes": 40}])
def test_a_run_that_no_table_has_needs_a_name(change: dict[str, Any]) -> None:
    with pytest.raises(InlayError, match=r"00\.json has a place in no table; run it anew with --name"):
        sections(_runs(_record() | change), IMAGE_FOLDER)
    text = "\n\n".join(sections(_runs(_record() | change | {"name": "trial"}), IMAGE_FOLDER))
    assert _line(text.split("### Other runs")[1], run="trial")["CNN"] == "60.00 (1)"


def test_only_whole_and_finished_records_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(_record()))
    (tmp_path / "b.json").write_text(json.dumps(_record(order="podnet-2") | {"average": None}))
    assert [run.file for run in read_runs(tmp_path)] == ["a.json"]
    (tmp_path / "c.json").write_text(json.dumps({"method": "icarl"}))
    with pytest.raises(InlayError, match=r"c\.json has no 'average'; write it anew with `inlay bench table2`"):
        read_runs(tmp_path)


def test_curves_are_means_over_orders() -> None:
    records = [_fair("full", 0.4), _fair("full", 0.6, "podnet-2"), _fair("amm", 0.7), _record("podnet", average=0.3)]
    pictures = curve_pictures(_runs(*records))
    assert set(pictures) == {"table2-published-10.svg", "table2-podnet-10.svg"}
    root = ElementTree.fromstring(pictures["table2-podnet-10.svg"])
    series = {g.get("data-label"): g for g in root.iter() if g.get("class") == "series"}
    assert set(series) == {"full", "AMM"}
    heights = {}
    for label, group in series.items():
        (line,) = [element for element in group if element.tag.endswith("polyline")]
        points = [point.split(",") for point in line.attrib["points"].split()]
        assert len(points) == 11
        (heights[label],) = {float(y) for _, y in points}
    # From 50 at 100 % to 380 at 0 %.
    assert heights == {"full": pytest.approx(215), "AMM": pytest.approx(149)}
    names = [image.split("/")[-1].rstrip(")") for image in curve_images(_runs(*records), "B", IMAGE_FOLDER)]
    assert names == ["table2-podnet-10.svg"]


def test_runs_make_pages_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, pages = tmp_path / "runs", (tmp_path / "results.md", tmp_path / "claims.md")
    runs.mkdir()
    (runs / "a.json").write_text(json.dumps(_record()))
    for page in pages:
        page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    monkeypatch.setattr(results_table2, "RUNS", runs)
    monkeypatch.setattr(results_table2, "IMAGES", tmp_path)
    monkeypatch.setattr(results_tables, "PAGE", pages[0])
    monkeypatch.setattr(reproducibility, "PAGE", pages[1])
    for command, stale in ((["x", "--check"], 1), (["x"], None), (["x", "--check"], 0)):
        monkeypatch.setattr("sys.argv", command)
        if stale is None:
            results_table2.main()
        else:
            with pytest.raises(SystemExit) as stop:
                results_table2.main()
            assert stop.value.code == stale
    assert (tmp_path / "table2-published-10.svg").is_file()
    assert all(page.read_text().startswith("before\n") and page.read_text().endswith("\nafter\n") for page in pages)
    assert "53.78" in pages[0].read_text() and "53.78" in pages[1].read_text()


def test_the_tables_have_the_systems_and_controls_of_the_benchmark() -> None:
    assert set(PUBLISHED) <= set(PRINTED)
    assert set(FAIR) <= set(HOSTS)
    assert set(CONTROLS) == set(RUNNABLE)
    assert {run.stages for run in table2(Choice("B"))} == {25, 10}
