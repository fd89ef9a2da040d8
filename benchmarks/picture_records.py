"""Put the trade-off curves and the confusion of old with new of finished runs together for benchmarks/pictures.py.

    python -m benchmarks.picture_records

Reads benchmarks/results/table1/*.json, takes the first seed of each system of the table, and writes
benchmarks/results/pictures/{tradeoff,confusion}-DATASET[-ours].json.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.pictures import RESULTS
from benchmarks.results_paper import BASES, DATASETS
from benchmarks.results_tables import RUNS

from inlay.bench.systems import TABLE
from inlay.engine.checkpoint import read_json, write_json

__all__ = ["picture_records"]


def main() -> None:
    """Write the files of all data sets and base recipes."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    records = [read_json(file) for file in sorted(RUNS.glob("*.json"))]
    for name, record in picture_records(records).items():
        write_json(RESULTS / f"{name}.json", record)


def picture_records(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the records of the pictures by the name of their file.

    Args:
        records: Records of runs; those of one stage on the first split, without a name of their own, count.
    """
    found: dict[str, dict[str, Any]] = {}
    for record in sorted(records, key=lambda each: int(each["seed"])):
        usual = record["name"] is None and record["steps"] == 1 and record["split"] == "first"
        if not usual or record["method"] not in TABLE or not record["tradeoff"]:
            continue
        place = record["dataset"] + ("" if record["base"] == "reference" else f"-{record['base']}")
        confusion = {"classes": ["old", "new"], "matrix": record["old_new"]}
        for picture, data in (("tradeoff", record["tradeoff"]), ("confusion", confusion)):
            drawn = found.setdefault(
                f"{picture}-{place}",
                {
                    "picture": picture,
                    "title": f"{DATASETS[record['dataset']]}, {BASES[record['base']]}, seed {record['seed']}",
                    "systems": [],
                },
            )
            if all(system["label"] != record["method"] for system in drawn["systems"]):
                drawn["systems"].append({"label": record["method"], **data})
    for drawn in found.values():
        drawn["systems"].sort(key=lambda system: TABLE.index(system["label"]))
    return found


if __name__ == "__main__":
    main()
