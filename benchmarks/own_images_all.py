"""Measure every part of the benchmark of own images on some data sets, several runs at the same time.

    python -m benchmarks.own_images_all --data-sets cifar10 cifar100 --side-by-side 8 --data ROOT --device cuda

The base stages are learned first, each seed by a process of its own, then each part of each data set is measured by
one. Options that are not listed below go to `benchmarks.own_images`. A part that was measured is not measured again, so
that the command, repeated, goes on where it was stopped.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from benchmarks.own_images import BASE, PARTS
from benchmarks.own_images_cases import DataSet

from inlay.bench.pool import Ending, Job, run_side_by_side
from inlay.errors import Interrupted

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Measure; exit code 1 says that something has failed, and 130 that Ctrl-C was pressed."""
    options, passed_on = _parser().parse_known_args(arguments)
    passed_on += ["--work", str(options.work)]
    options.work.mkdir(parents=True, exist_ok=True)
    seeds = [str(seed) for seed in options.seeds]
    bases = [_job(BASE, data_set, [seed], options.work, passed_on) for seed in seeds for data_set in options.data_sets]
    parts = [_job(part, data_set, seeds, options.work, passed_on) for part in PARTS for data_set in options.data_sets]
    failures = []
    try:
        for jobs in (bases, parts):
            endings = run_side_by_side(jobs, options.side_by_side, _tell)
            failures += [ending for ending in endings if ending.failure]
            if failures:
                break
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        sys.exit(130)
    if failures:
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    # Unabbreviated, as --data goes to the other command.
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter, allow_abbrev=False)
    parser.add_argument("--data-sets", nargs="+", choices=get_args(DataSet), required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--side-by-side", type=int, default=1, help="runs at the same time")
    parser.add_argument(
        "--work", type=Path, default=Path("build") / "own-images", help="folder of base stages and logs"
    )
    return parser


def _job(part: str, data_set: str, seeds: Sequence[str], work: Path, passed_on: Sequence[str]) -> Job:
    name = "-".join([part, data_set, *(seeds if part == BASE else [])])
    command = [sys.executable, "-m", "benchmarks.own_images", "--part", part, "--data-set", data_set, "--seeds", *seeds]
    return Job(name, [*command, *passed_on], work / f"{name}.log")


def _tell(ending: Ending) -> None:
    outcome = f"failed: {ending.failure}; see {ending.job.log}" if ending.failure else f"{ending.seconds:.0f} s"
    left = f", about {ending.seconds_left:.0f} s left" if ending.seconds_left >= 1 else ""
    print(f"{ending.job.name}: {outcome} ({ending.number} of {ending.total}{left})", flush=True)


if __name__ == "__main__":
    main()
