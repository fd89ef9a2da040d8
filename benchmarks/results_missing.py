"""The runs that are planned for the page of results and do not exist yet."""

from collections.abc import Sequence

from benchmarks.results_paper import DATASETS
from benchmarks.results_runs import NOTHING, Run, table

from inlay.bench.campaign import PARTS, campaign

__all__ = ["missing_section"]

_TITLES = {
    "table": "Table 1 and its references, reference base recipe",
    "ours": "Table 1, our base recipe",
    "steps": "several steps",
    "splits": "random splits",
    "gates": "gates",
    "ladder": "the ladder from ADM to inlay",
    "ablations": "parts of ADM",
    "diagnosis": "likely reasons for figures below print",
    "length": "full length",
}


def missing_section(runs: Sequence[Run]) -> list[str]:
    """Return a section that counts the missing runs of each part of the page; none if there are none.

    Args:
        runs: The runs that the page shows.
    """
    files = {run.file for run in runs}
    rows, left = [], 0
    for part in PARTS:
        cells = {"part": f"{_TITLES[part]} (`{part}`)"}
        for dataset, title in DATASETS.items():
            wanted = [f"{run.label}.json" for run in campaign([part], [dataset])]
            found = sum(file in files for file in wanted)
            left += len(wanted) - found
            cells[title] = f"{found} of {len(wanted)}" if wanted else NOTHING
        rows.append(cells)
    if not left:
        return []
    text = (
        "How many of the runs planned for this page exist. Tables without a single run are left out. "
        "`inlay bench all --data ROOT` makes the missing ones in this order; with `--dry-run` it lists them."
    )
    return ["## Not run yet", f"{text}\n\n{table(rows)}"]
