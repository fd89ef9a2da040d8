"""Measure how strongly base and novel branch respond in unmerged hybrids, on old and on new test images.

    python -m benchmarks.magnitudes --data ROOT [--dataset cifar10] [--gates imm aff amm] [--seed 0]

The base stage is that of `inlay bench`, found again in its --work folder; each gate then trains the losses of ADM. The
file benchmarks/results/pictures/magnitude-DATASET.json is drawn by benchmarks/pictures.py.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.pictures import RESULTS
from torch import Tensor

from inlay.bench import Places, Run
from inlay.bench.base_stage import base_stage, reduced
from inlay.bench.datasets import BENCHMARKS, benchmark
from inlay.bench.recipe import schedule_text, settings_of
from inlay.bench.records import new_record
from inlay.branches.magnitude import branch_magnitudes
from inlay.data import ImageSet
from inlay.engine.checkpoint import write_json
from inlay.engine.loop import Loop
from inlay.engine.progress import QuietProgress
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from inlay.pipeline import Workshop, learn_stage

IMAGES, BATCH = 1000, 250
KEPT = ("hardware", "versions", "commit", "date", "base_recipe", "schedule", "seed", "dataset")


@dataclass(frozen=True)
class WatchingWorkshop(Workshop):
    """Remembers the loops it has made, and with them the hybrids under training, which merging leaves alone."""

    loops: list[Loop] = field(default_factory=list)

    def made(self, loop: Loop) -> None:
        """Remember a loop."""
        self.loops.append(loop)


def main() -> None:
    """Train a hybrid with each gate, measure it and write the file."""
    options = _parser().parse_args()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(options.out / f"magnitude-{options.dataset}.json", measure(options))
    except InlayError as error:
        sys.exit(f"Error: {error}")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the record of all gates.

    Args:
        options: The command line.

    Raises:
        InlayError: If the data is missing or a setting is wrong.
    """
    places = Places(options.data, options.out, options.work, options.device, options.commit)
    places.make_folders()
    record: dict[str, Any] = {"picture": "magnitude", "gates": []}
    for gate in options.gates:
        changes = {"branch.gate": gate, **dict(change.split("=", 1) for change in options.set)}
        run = Run("adm", options.dataset, options.seed, changes=changes, backbone=options.backbone)
        settings = settings_of(run)
        stages = benchmark(run.dataset).stages(places.data, run.steps, run.split_seed)
        base = base_stage(stages.base, run, settings, places, QuietProgress())
        workshop = WatchingWorkshop(base.device)
        statistics = reduced(base.knowledge.statistics, settings.replay.statistics)
        start = dataclasses.replace(base.knowledge, statistics=statistics)
        learn_stage(start, stages.unlabelled(1), len(stages.class_names(1)), settings, workshop)
        hybrid = workshop.loops[0].work.get_submodule("trunk").eval()
        known, test, new = base.knowledge, stages.test(1), stages.class_names(1)
        found = {
            name: branch_magnitudes(hybrid, _inputs(known, test, [(c in new) == is_new for c in test.class_names]))
            for name, is_new in (("old", False), ("new", True))
        }
        record["gates"].append({"label": gate.upper(), **{name: each.to_json() for name, each in found.items()}})
        facts = new_record(run, settings, places)
        record |= {name: facts[name] for name in KEPT}
        record["title"] = f"{run.dataset}: largest response, mean over {IMAGES:,} test images at most"
        record["command"] = f"python -m benchmarks.magnitudes --data ROOT --dataset {run.dataset} --seed {run.seed}"
        print(f"{gate}: measured after {schedule_text(settings.training)}", flush=True)
    return record


def _inputs(known: Knowledge, test: ImageSet, wanted: list[bool]) -> Iterator[Tensor]:
    """Yield the first test images of some classes as inputs of the network."""
    assert test.labels is not None
    chosen = torch.tensor(wanted)[test.labels].nonzero().flatten()
    # Test images stand class by class; every n-th of them is of all classes.
    chosen = chosen[:: max(1, len(chosen) // IMAGES)][:IMAGES]
    for indices in torch.split(chosen, BATCH):
        yield known.form.prepare(test.images[indices].to(known.device))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the data sets")
    parser.add_argument("--dataset", choices=list(BENCHMARKS), default="cifar10")
    parser.add_argument("--gates", nargs="+", default=["imm", "aff", "amm"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="change a setting, as in `inlay bench`")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path("runs/bench"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", help="commit for the record; by default git's")
    return parser


if __name__ == "__main__":
    main()
