"""Walk the guide on a benchmark data set as folders of image files: benchmarks/results/own-images/walk-DATASET.json.

    python -m benchmarks.folder_walk --data-set cifar100 --data ROOT --device cuda --work FOLDER [--seed 0]

The classes are shuffled by the seed. A tenth of the training images of each base class is withheld and lies,
unlabelled, in two piles with those of the new classes. Every step is the real command; what it leaves behind is scored.
"""

import argparse
import csv
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from inlay.bench.datasets import benchmark
from inlay.bench.records import commit_of, hardware_of
from inlay.data import ImageSet
from inlay.data.demo import demo_digits
from inlay.evaluation import match_clusters
from inlay.knowledge import StageRecord
from inlay.run_folder import RunFolder

__all__ = ["Folders", "main", "run_command", "scored", "write_folders"]

RESULTS = Path(__file__).parent / "results" / "own-images"
CUTS: Mapping[str, tuple[int, ...]] = {"demo": (5, 3, 2), "cifar100": (80, 10, 10), "tinyimagenet": (180, 10, 10)}

_WITHHELD = 0.1
_RUN = "shop.inlay"


@dataclass(frozen=True)
class Folders:
    """Folders of image files.

    Attributes:
        root: Holds `labelled`, `pile-1`, `pile-2` and `test`.
        classes: Names of the classes of the base stage and of each pile.
        truth: Class of each file in the piles and of each test image, by its path below the root.
    """

    root: Path
    classes: tuple[tuple[str, ...], ...]
    truth: Mapping[str, str]


def write_folders(train: ImageSet, test: ImageSet, cut: Sequence[int], seed: int, root: Path) -> Folders:
    """Write images as PNG files: labelled base classes, a pile for each further part of the cut, and test images."""
    assert train.labels is not None and test.labels is not None
    randomness = torch.Generator().manual_seed(seed)
    order = [train.class_names[index] for index in torch.randperm(sum(cut), generator=randomness).tolist()]
    classes = tuple(tuple(order[sum(cut[:part]) : sum(cut[: part + 1])]) for part in range(len(cut)))
    files: dict[str, tuple[ImageSet, int]] = {}
    truth: dict[str, str] = {}
    piles: list[list[int]] = [[] for _ in cut[1:]]
    for part, names in enumerate(classes):
        for name in names:
            members = torch.nonzero(train.labels == train.class_names.index(name)).flatten()
            members = members[torch.randperm(len(members), generator=randomness)]
            known = members[int(_WITHHELD * len(members)) :] if part == 0 else members[:0]
            files |= {f"labelled/{name}/{number}.png": (train, number) for number in known.tolist()}
            rest = members[: len(members) - len(known)].tolist()
            for pile, own in enumerate(piles):
                own += rest[pile :: len(piles)] if part == 0 else rest if pile == part - 1 else []
    for pile, own in enumerate(piles, start=1):
        for place in torch.randperm(len(own), generator=randomness).tolist():
            path = f"pile-{pile}/{len(truth):06d}.png"
            files[path], truth[path] = (train, own[place]), train.class_names[int(train.labels[own[place]])]
    for number, label in enumerate(test.labels.tolist()):
        if test.class_names[label] in order:
            path = f"test/{number:06d}.png"
            files[path], truth[path] = (test, number), test.class_names[label]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda item: _write(root / item[0], *item[1]), files.items()))
    return Folders(root, classes, truth)


def _write(path: Path, images: ImageSet, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = images.images[number].permute(1, 2, 0).numpy()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(path, compress_level=1)


def main(arguments: list[str] | None = None) -> None:
    """Write the folders, take the commands and write down what came of them."""
    options = _parser().parse_args(arguments)
    train, test = demo_digits() if options.data_set == "demo" else benchmark(options.data_set).images(options.data)
    folders = write_folders(train, test, CUTS[options.data_set], options.seed, options.work)
    steps: list[dict[str, Any]] = []

    def take(*words: str) -> None:
        began = time.monotonic()
        done = run_command(["inlay", *words], options.work)
        if done.returncode:
            raise SystemExit(f"{shlex.join(words)}: {done.stdout}{done.stderr}")
        steps.append({"command": shlex.join(("inlay", *words)), "seconds": time.monotonic() - began})
        print(f"{steps[-1]['command']}: {steps[-1]['seconds']:.0f} s", flush=True)

    device = () if options.device == "auto" else ("--device", options.device)
    take("doctor", "labelled")
    take("fit", "labelled", "--out", _RUN, "--seed", str(options.seed), *device, *options.fit)
    stages = []
    for pile in range(1, len(folders.classes)):
        take("discover", _RUN, f"pile-{pile}", *device)
        for part in (*(f"pile-{earlier}" for earlier in range(1, pile + 1)), "test"):
            take("predict", _RUN, part, "--csv", f"{part}.csv", *device)
        stages.append(_stage(folders, pile))
    take("export", _RUN, "--onnx", "shop.onnx")
    _record(options, folders, steps, stages)


def run_command(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, in a process of its own."""
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-set", choices=tuple(CUTS), required=True)
    parser.add_argument("--data", type=Path, help="folder that holds the data sets; the demonstration needs none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help='"auto", "cpu" or "cuda"')
    parser.add_argument("--fit", type=shlex.split, default=[], help="further options of inlay fit, in one text")
    parser.add_argument("--work", type=Path, required=True, help="a new folder for images and run")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser


def _stage(folders: Folders, pile: int) -> dict[str, Any]:
    """Say what a stage has found, and score what is predicted after it."""
    facts = RunFolder.open(folders.root / _RUN).read_facts(pile)
    found = StageRecord.from_json(facts["stage"]).found or {}
    predicted = {
        path: name for part in _parts(pile) for path, name in _predictions(folders.root / f"{part}.csv", part).items()
    }
    counted = found["classes"]
    return {
        "truth": len(folders.classes[pile]),
        **{name: counted[name] for name in ("estimate", "low", "high")},
        **{name: found[name] for name in ("pile", "known", "new", "neither")},
        "scores": scored(folders, predicted, pile),
    }


def _parts(pile: int) -> list[str]:
    return [*(f"pile-{earlier}" for earlier in range(1, pile + 1)), "test"]


def _predictions(file: Path, part: str) -> dict[str, str]:
    with file.open(newline="", encoding="utf-8") as rows:
        return {f"{part}/{Path(row['source']).name}": row["name"] for row in csv.DictReader(rows)}


def scored(folders: Folders, predicted: Mapping[str, str], pile: int) -> dict[str, float]:
    """Score the test images of all classes seen; discovered classes are matched with true ones on the piles.

    Args:
        folders: The folders.
        predicted: Name that was given to each image of the piles so far and of the test, by its path.
        pile: Number of the latest pile.

    Returns:
        Accuracy on the base classes ("old"), on those of all piles so far ("new"), and on both ("all").
    """
    names = {name: name for name in folders.classes[0]}
    for earlier in range(1, pile + 1):
        true = folders.classes[earlier]
        mine = {path: folders.truth[path] for path in predicted if path.startswith(f"pile-{earlier}/")}
        own = [path for path, name in mine.items() if name in true]
        clusters = sorted({name for name in predicted.values() if name.startswith(f"new-{earlier}.")})
        pairs = [
            (clusters.index(predicted[path]), true.index(mine[path])) for path in own if predicted[path] in clusters
        ]
        rows, columns = [row for row, _ in pairs], [column for _, column in pairs]
        for name, cluster in zip(true, match_clusters(rows, columns, len(clusters), len(true)), strict=True):
            if cluster >= 0:
                names[name] = clusters[cluster]
    seen = [name for names_of in folders.classes[: pile + 1] for name in names_of]
    right: dict[bool, list[bool]] = {True: [], False: []}
    for path, name in predicted.items():
        if path.startswith("test/") and (truth := folders.truth[path]) in seen:
            right[truth in folders.classes[0]].append(names.get(truth) == name)
    both = [*right[True], *right[False]]
    return {
        "old": sum(right[True]) / len(right[True]),
        "new": sum(right[False]) / len(right[False]),
        "all": sum(both) / len(both),
    }


def _record(
    options: argparse.Namespace, folders: Folders, steps: list[dict[str, Any]], stages: list[dict[str, Any]]
) -> None:
    words = ["python", "-m", "benchmarks.folder_walk", "--data-set", options.data_set, "--seed", str(options.seed)]
    words += [] if options.data_set == "demo" else ["--data", "ROOT"]
    words += ["--work", "FOLDER"] + (["--fit", shlex.join(options.fit)] if options.fit else [])
    images = {
        part.name: sum(file.is_file() for file in part.rglob("*.png"))
        for part in folders.root.iterdir()
        if part.is_dir()
    }
    record = {
        "part": "walk",
        "data_set": options.data_set,
        "seed": options.seed,
        "images": {name: count for name, count in images.items() if count},
        "steps": steps,
        "stages": stages,
        "command": shlex.join(words),
        "commit": commit_of(Path(__file__).parent),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "hardware": hardware_of(options.device),
        "versions": {"torch": str(torch.__version__)},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"walk-{options.data_set}.json"
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
