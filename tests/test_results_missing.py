import json
from pathlib import Path

from benchmarks.results_missing import missing_section
from benchmarks.results_runs import NOTHING, read_runs

from inlay.bench import Run
from inlay.bench.campaign import PARTS, campaign
from result_records import record, rows


def test_the_page_counts_what_is_missing(tmp_path: Path) -> None:
    wanted = [Run("adm", "cifar10", seed) for seed in (0, 1)] + [Run("adm", "cifar10", 0, base="ours")]
    for run in wanted:
        facts = record(seed=run.seed, base=run.base, base_recipe=run.base)
        (tmp_path / f"{run.label}.json").write_text(json.dumps(facts), encoding="utf-8")
    heading, section = missing_section(read_runs(tmp_path))
    assert heading == "## Not run yet"
    # Nine systems and five references once, and two more seeds of four systems.
    table1, ours, steps = rows(section)[:3]
    assert table1["part"].endswith("(`table`)") and table1["CIFAR-10"] == "2 of 22" and table1["CIFAR-100"] == "0 of 22"
    assert ours["CIFAR-10"] == "1 of 6" and steps["CIFAR-10"] == NOTHING and steps["CIFAR-100"] == "0 of 6"
    assert len(rows(section)) == len(PARTS)
    for run in campaign():
        facts = record(run.system, run.seed, base=run.base)
        (tmp_path / f"{run.label}.json").write_text(json.dumps(facts), encoding="utf-8")
    assert missing_section(read_runs(tmp_path)) == []
