"""Write Table 2 in docs/results.md and REPRODUCIBILITY.md, and its curves, from benchmarks/results/table2/*.json.

python -m benchmarks.results_table2 [--check]
"""

import argparse
import sys
from pathlib import Path

from benchmarks import reproducibility, results_tables, table2_claims, table2_tables
from benchmarks.page import between
from benchmarks.pictures import IMAGES
from benchmarks.table2_curves import curve_pictures
from benchmarks.table2_runs import read_runs

from inlay.errors import InlayError

__all__ = ["BEGIN", "END", "RUNS", "outdated"]

RUNS = Path(__file__).parent / "results" / "table2"
BEGIN, END = "<!-- table 2: made by benchmarks/results_table2.py -->", "<!-- end of table 2 -->"


def main() -> None:
    """Write what is not up to date, or with --check say whether there is any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if something is not up to date")
    options = parser.parse_args()
    try:
        files = outdated(RUNS, results_tables.PAGE, reproducibility.PAGE, IMAGES)
    except InlayError as error:
        sys.exit(f"Error: {error}")
    if options.check:
        sys.exit(bool(files))
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")


def outdated(folder: Path, results: Path, claims: Path, images: Path) -> dict[Path, str]:
    """Return the pages and pictures that are missing or differ from what the runs give, by path.

    Args:
        folder: Folder of the runs.
        results: Page of the tables.
        claims: Page of the claims.
        images: Folder of the pictures.

    Raises:
        InlayError: If runs that are averaged or compared were not made alike.
    """
    runs = read_runs(folder)
    wanted = {
        results: between(results.read_text(encoding="utf-8"), BEGIN, END, table2_tables.sections(runs, images)),
        claims: between(claims.read_text(encoding="utf-8"), BEGIN, END, table2_claims.sections(runs)),
        **{images / name: picture for name, picture in curve_pictures(runs).items()},
    }
    return {
        path: text for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text
    }


if __name__ == "__main__":
    main()
