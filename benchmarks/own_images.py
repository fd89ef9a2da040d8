"""Measure class count, triage, few new images, forgetting meter: benchmarks/results/own-images/PART-DATASET.json.

With --backbone its name follows that of the data set.

    python -m benchmarks.own_images --part count --data-set demo [--seeds 0 1 2 3 4]
    python -m benchmarks.own_images --part triage --data-set cifar100 --data ROOT --device cuda

The base stage of each seed, with its self-test, is learned once and shared by the parts (--work); --part base does that
alone, so that several seeds can be learned side by side by a process each. A seed is written as soon as it is measured,
and one that was measured with the same options is not measured again.
"""

import argparse
import json
from pathlib import Path
from typing import Any, get_args

from benchmarks.own_images_cases import DATA_SETS, Case, DataSet, prepared
from benchmarks.own_images_count import ERROR, count_rows
from benchmarks.own_images_few import few_rows
from benchmarks.own_images_forgetting import forgetting_row
from benchmarks.own_images_record import origin, runs_before
from benchmarks.own_images_triage import triage_row

from inlay.cli.options import read_changes

__all__ = ["PARTS", "main"]

PARTS = ("count", "triage", "few", "forgetting")
BASE = "base"
RESULTS = Path(__file__).parent / "results" / "own-images"

_OPTIONS = ("part", "data_set", "split_seed", "changes", "backbone")
_NEW_CLASSES: dict[DataSet, tuple[int, ...]] = {
    "demo": (3, 5),
    "cifar10": (5,),
    "cifar100": (10, 20),
    "photographs": (5, 10),
    "photographs-10": (5,),
    "photographs-100": (10, 20),
}


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    options = _parser().parse_args(arguments)
    changes = read_changes(options.changes)
    if options.part == BASE:
        for seed in options.seeds:
            _case(options, seed, changes)
            print(f"{BASE} {options.data_set}: seed {seed}", flush=True)
    else:
        _measure(options, changes)


def _measure(options: argparse.Namespace, changes: dict[str, str]) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{'-'.join(filter(None, [options.part, options.data_set, options.backbone]))}.json"
    record = _new_record(options, changes)
    known = runs_before(file, record, _OPTIONS)
    for seed in options.seeds:
        if seed not in known:
            known[seed] = {"seed": seed, **_measured(options, seed, changes)}
        record["runs"] = [known[key] for key in options.seeds if key in known]
        file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{options.part} {options.data_set}: seed {seed}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=(*PARTS, BASE), required=True)
    parser.add_argument("--data-set", choices=get_args(DataSet), required=True)
    parser.add_argument("--data", type=Path, help="folder that holds the data sets; the demonstration needs none")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--split-seed", type=int, help="shuffle the classes by this seed")
    parser.add_argument("--set", dest="changes", action="append", help="change a setting, as in `inlay fit`")
    parser.add_argument("--backbone", help="name of the network; by default that of the recipe")
    parser.add_argument("--device", default="auto", help='"auto", "cpu" or "cuda"')
    parser.add_argument("--no-baselines", dest="baselines", action="store_false", help="count without baselines")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path("build") / "own-images", help="folder of base stages")
    return parser


def _case(options: argparse.Namespace, seed: int, changes: dict[str, str]) -> Case:
    place = (options.device, options.work)
    return prepared(options.data_set, options.data, seed, *place, options.split_seed, changes, options.backbone)


def _measured(options: argparse.Namespace, seed: int, changes: dict[str, str]) -> dict[str, Any]:
    case = _case(options, seed, changes)
    said = {"self_test": _self_test(case)}
    if options.part == "count":
        return said | {"piles": count_rows(case, _NEW_CLASSES[options.data_set], options.baselines)}
    if options.part == "few":
        return said | {"piles": few_rows(case, ERROR)}
    return said | (triage_row(case, ERROR) if options.part == "triage" else forgetting_row(case))


def _self_test(case: Case) -> list[dict[str, Any]]:
    """What the run said of itself before any of this."""
    return [
        {"hidden": len(trial.hidden), "estimate": trial.estimate, "spread": trial.spread, "auroc": trial.auroc}
        for trial in case.calibration.trials
    ]


def _new_record(options: argparse.Namespace, changes: dict[str, str]) -> dict[str, Any]:
    words = ["python", "-m", "benchmarks.own_images", "--part", options.part, "--data-set", options.data_set]
    words += [] if options.data_set == DATA_SETS[0] else ["--data", "ROOT"]
    words += ["--seeds", *map(str, options.seeds)]
    words += [] if options.split_seed is None else ["--split-seed", str(options.split_seed)]
    for path, value in changes.items():
        words += ["--set", f"{path}={value}"]
    words += [] if options.backbone is None else ["--backbone", options.backbone]
    words += [] if options.baselines else ["--no-baselines"]
    return {
        "part": options.part,
        "data_set": options.data_set,
        "split_seed": options.split_seed,
        "changes": changes,
        "backbone": options.backbone,
        "command": " ".join(words),
        **origin(options.device, options.seeds),
    }


if __name__ == "__main__":
    main()
