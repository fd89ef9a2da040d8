import json
from pathlib import Path
from typing import Any

from benchmarks import own_images_summary as page
from benchmarks.page import between


def _write(folder: Path, part: str, runs: list[dict[str, Any]]) -> None:
    (folder / f"{part}-demo.json").write_text(json.dumps({"runs": runs}), encoding="utf-8")


def _pile(truth: int, estimate: int, low: int, high: int) -> dict[str, Any]:
    return {"truth": truth, "estimate": estimate, "low": low, "high": high}


def test_the_guide_is_up_to_date() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert between(text, page.BEGIN, page.END, [page.summary(page.FOLDER)]) == text


def test_piles_with_and_without_new_classes_are_counted_apart(tmp_path: Path) -> None:
    none, one = _pile(0, 0, 0, 0), _pile(0, 1, 1, 2)
    near, far, outside = _pile(5, 6, 4, 8), _pile(5, 7, 5, 9), _pile(5, 2, 1, 3)
    _write(tmp_path, "count", [{"piles": [near, far, none]}, {"piles": [near, outside, one]}])
    _write(tmp_path, "triage", [{"new_found": 0.5, "known_error": 0.04}, {"new_found": 0.7, "known_error": 0.06}])
    _write(tmp_path, "forgetting", [{"estimate": 0.05, "truth": 0.03}, {"estimate": 0.01, "truth": 0.07}])
    *_, row = page.summary(tmp_path).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:4] == ["1 of 2", "2 of 4", "3 of 4"]
    assert cells[4:] == ["60 ± 14 %", "5 ± 1 %", "1 of 2"]


def test_what_was_not_measured_is_a_dash(tmp_path: Path) -> None:
    _write(tmp_path, "count", [{"piles": [_pile(5, 5, 4, 8)]}])
    *_, row = page.summary(tmp_path).splitlines()
    assert [cell.strip() for cell in row.strip("|").split("|")][4:] == ["–", "–", "–"]
