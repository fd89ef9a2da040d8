import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import scaling, scaling_child, scaling_tables
from benchmarks.page import measured_files
from benchmarks.scaling_clock import Clock

from inlay.pipeline import Workshop, learn_stage

CPU = torch.device("cpu")


def test_the_page_shows_the_measured_numbers() -> None:
    page = scaling_tables.PAGE.read_text(encoding="utf-8")
    assert scaling_tables.with_tables(page, measured_files(scaling_tables.RESULTS, "scaling")) == page


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_is_the_power(power: float) -> None:
    counts = [5, 20, 80, 320]
    found = scaling.growth(counts, [0.3 * count**power for count in counts])
    assert found["exponent"] == pytest.approx(power)
    assert found["last_exponent"] == pytest.approx(power)


def test_a_constant_part_is_no_departure_from_a_line() -> None:
    counts = [1, 2, 4, 8]
    assert scaling.growth(counts, [7 + 2 * count for count in counts])["departure"] == pytest.approx(0, abs=1e-9)


def test_a_departure_is_the_largest_relative_difference_from_the_nearest_line() -> None:
    """Any line is tried: none comes as near in the sum of squares of relative differences."""
    counts, seconds = [1.0, 2.0, 4.0], [1.0, 4.0, 16.0]
    lines = [(a / 50, b / 50) for a in range(-150, 100) for b in range(50, 200)]

    def differences(line: tuple[float, float]) -> list[float]:
        return [(line[0] + line[1] * n) / t - 1 for n, t in zip(counts, seconds, strict=True)]

    nearest = min(lines, key=lambda line: sum(each**2 for each in differences(line)))
    expected = max(abs(each) for each in differences(nearest))
    assert scaling.growth(counts, seconds)["departure"] == pytest.approx(expected, abs=0.02)


def test_short_parts_have_no_exponent() -> None:
    def measured(count: int) -> dict[str, Any]:
        return {
            "seconds": 100.0 * count,
            "parts": {"training": 99.0 * count, "k-means": 1.0 * count, "neighbours": 0.0},
        }

    assert scaling.sweep("images", "inlay", (1, 2), measured)["growth"].keys() == {"stage", "training"}


def test_the_clock_sees_every_part_of_a_stage_and_leaves_nothing_behind() -> None:
    settings = scaling._settings(scaling.QUICK, {"assignment.partner_share": 0.5})
    known = scaling._base(scaling.QUICK, 3, settings, CPU)
    images = scaling_child.pictures(3, 24, 8, seed=1).without_labels()
    clock = Clock(CPU)
    with clock.watching():
        learn_stage(known, images, 3, settings, Workshop())
    assert all(seconds > 0 for seconds in clock.parts.values())
    before = dict(clock.parts)
    learn_stage(known, images, 3, settings, Workshop())
    assert clock.parts == before


def test_pictures_of_a_class_are_alike() -> None:
    found = scaling_child.pictures(3, 30, 8, seed=0)
    assert found.labels is not None and torch.bincount(found.labels).tolist() == [10, 10, 10]
    pixels = found.images.float().flatten(1)
    means = torch.stack([pixels[found.labels == label].mean(dim=0) for label in range(3)])
    assert (torch.cdist(pixels, means).argmin(dim=1) == found.labels).all()


def test_the_entry_point_measures_writes_and_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "scaling-cpu.json"
    words = ["--quick", "--device", "cpu", "--parts", "images", "classes", "stages", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["scaling", *words])
    threads = torch.get_num_threads()
    scaling.main()
    assert torch.get_num_threads() == threads
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["command"] == "python -m benchmarks.scaling --device cpu --quick --parts images classes stages"
    assert [found["what"] for found in record["images"]] == ["images"] * 2
    assert [found["what"] for found in record["classes"]] == ["old classes"] * 3 + ["new classes"] * 2
    for found in record["images"] + record["classes"]:
        for row in found["rows"]:
            assert sum(row["parts"].values()) == pytest.approx(row["seconds"])
            assert 0 < row["parts"]["training"] < row["seconds"]
    full, shared = (found["rows"][0]["bytes_per_class"] for found in record["classes"][:2])
    assert full > shared
    assert len({row["parameters"] for row in record["stages"]}) == 1
    assert [row["classes"] for row in record["stages"]] == [10, 20, 30]
    assert record["processes"] is None
    assert scaling_tables.summary(record) in capsys.readouterr().out


def test_a_process_gives_speed_and_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling_child, "SIDE", 8)
    monkeypatch.setattr(scaling_child, "BATCH", 32)
    found = scaling_child.measured("cpu", "auto", [3], 1, 1)
    assert found["processes"] == 1 and found["threads"] == torch.get_num_threads()
    assert found["base_images_per_s"] > 0 and found["discovery_images_per_s"] > 0
    assert [run["seed"] for run in found["runs"]] == [3]
    assert all(0 <= found["runs"][0][name] <= 1 for name in scaling_tables.SCORES)


def _way(name: str, rate: float, values: list[float]) -> dict[str, Any]:
    runs = [{"seed": seed, "old": value, "new": 0.5, "all": value / 2} for seed, value in enumerate(values)]
    return {
        "way": name,
        "processes": 1,
        "threads": 2,
        "base_images_per_s": rate,
        "discovery_images_per_s": rate / 2,
        "runs": runs,
    }


def test_processes_are_compared_with_the_spread_of_the_seeds() -> None:
    """0.6, 0.8 and 1.0 have the mean 0.8 and the sample deviation 0.2; 0.8, 0.9 and 1.0 the mean 0.9."""
    ways = [_way("alone", 50, []), _way("one", 100, [0.6, 0.8, 1.0]), _way("two", 150, [0.8, 0.9, 1.0])]
    lines = scaling_tables.processes_table(ways).splitlines()
    assert lines[2] == "| alone | 1 × 2 | 50 | 25 | – | – | – |"
    assert lines[3] == "| one | 1 × 2 | 100 | 50 | 80.0 ± 20.0 | 50.0 ± 0.0 | 40.0 ± 10.0 |"
    assert lines[4] == "| two | 1 × 2 | 150 | 75 | 90.0 ± 10.0 | 50.0 ± 0.0 | 45.0 ± 5.0 |"
    assert lines[5] == "| *the last against the one before* |  | 1.50× | 1.50× | +10.0 | +0.0 | +5.0 |"


def test_tables_replace_only_what_is_between_the_marks() -> None:
    page = f"before {scaling_tables.BEGIN} old {scaling_tables.END} after"
    assert scaling_tables.with_tables(page, {}) == f"before {scaling_tables.BEGIN}\n\n{scaling_tables.END} after"
