"""CIFAR-10, five labelled and five discovered classes, with a preset: python benchmarks/cifar10.py --data DIR.

Writes benchmarks/results/cifar10-<preset>-seed<N>.json.
"""

import argparse
import json
import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

import inlay
from inlay.data import Stages, load


def main() -> None:
    """Train, discover, score, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="CIFAR-10: image folders or the original pickles")
    parser.add_argument("--preset", default="inlay")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="SETTING=VALUE")
    parser.add_argument("--name", default="", help="suffix of the result file")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    began = time.monotonic()
    stages = Stages(load(options.data, split="train"), load(options.data, split="test"), base=5, novel=[5])
    changes = dict(change.split("=", 1) for change in options.changes)
    learner = inlay.Learner("resnet18", preset=options.preset, settings=changes, seed=options.seed)
    base = learner.fit(stages.base)
    base_scores = learner.evaluate(stages.test(0))
    stage = learner.discover(stages.unlabelled(1), classes=5)
    scores = learner.evaluate(stages.test(1), match=stages.labelled(1))
    result = {
        "dataset": "cifar10",
        "preset": options.preset,
        "changes": changes,
        "seed": options.seed,
        "base_accuracy": base_scores.all,
        "metrics": scores.to_json(),
        "merge": stage.merge,
        "seconds": {"base": base.seconds, "stage": stage.seconds, "all": time.monotonic() - began},
        "stored_bytes_per_class": learner.knowledge.statistics.bytes_per_class(),
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "command": _command(options),
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"cifar10-{options.preset}{options.name}-seed{options.seed}.json"
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def _command(options: argparse.Namespace) -> str:
    changes = "".join(f" --set {change}" for change in options.changes)
    return f"python benchmarks/cifar10.py --data CIFAR10 --preset {options.preset} --seed {options.seed}{changes}"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    return os.environ.get("COMMIT") or shown.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
