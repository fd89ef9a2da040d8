import io

from rich.console import Console

from inlay.review.results import Results
from inlay.review.table import stage_table


def printed(results: Results) -> list[list[str]]:
    """Rows of the table as a terminal of 80 columns shows them, split where two blanks stand."""
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as capture:
        console.print(stage_table(results))
    rows = (line.strip() for line in capture.get().splitlines())
    return [[cell.strip() for cell in row.split("  ") if cell.strip()] for row in rows if row]


def test_rows_hold_the_numbers_given(results: Results) -> None:
    rows = printed(results)
    assert rows[0] == ["Accuracy after each stage"]
    assert rows[2] == ["Stage", "Old", "New", "All", "head", "head", "Time"]
    assert rows[4:] == [
        ["base (3 classes)", "98.8%", "–", "81.3%", "–", "97.5%", "12.3 s"],
        ["stage1 (2 classes)", "94.3%", "67.9%", "81.3%", "76.5%", "97.5%", "1 min 3 s"],
        ["k-means on pixels", "43.2%"],
        ["k-means on base features", "54.3%"],
        ["Forgetful fine-tuning", "1.2%", "70.1%", "34.6%"],
        ["Supervised ceiling", "99.1%", "98.2%", "98.8%"],
    ]


def test_skipped_baselines_have_no_row(results: Results) -> None:
    results["stages"][1]["baselines"] = {"forgetful": None, "kmeans_pixels": {"new_head": 0.5}}
    assert [row[0] for row in printed(results)[5:]] == ["stage1 (2 classes)", "k-means on pixels"]
    results["stages"][1].pop("baselines")
    assert [row[0] for row in printed(results)[5:]] == ["stage1 (2 classes)"]


def test_square_brackets_in_names_are_shown(results: Results) -> None:
    results["stages"][0]["name"] = "[red]b[/red]"
    assert printed(results)[4][0] == "[red]b[/red] (3 classes)"


def test_scores_matched_on_the_test_set_are_not_shown(results: Results) -> None:
    results["stages"][1]["metrics"]["matched_on"] = "test"
    words = " ".join(cell for row in printed(results)[5:] for cell in row if cell != "–").split()
    assert words == ["stage1", "(2", "classes)", "matched", "on", "test,", "not", "shown"]
