"""Fit the constants that count classes by walks: benchmarks/results/own-images/count-constants.json.

    python -m benchmarks.count_constants --data ROOT --work FOLDER [--piles 400]

ROOT holds CIFAR-100 and Tiny-ImageNet. Piles of known content are drawn from both: random known classes, from whose
images the metric comes, and 1 to 60 others of 25 images or more each, evenly or up to 1:10. The features are those of
the network that `inlay fit` chooses for photographs; they are kept in FOLDER. Printed and written are the constants of
`inlay.discovery.class_graph`, and how far off a rule is that was fitted to one data set and asked about the other.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from benchmarks import photographs
from benchmarks.own_images_record import origin
from torch import Tensor

from inlay.bench.datasets import benchmark
from inlay.data import load
from inlay.described import described
from inlay.discovery.class_graph import STEPS, walk_description
from inlay.discovery.statistics import class_statistics
from inlay.engine.checkpoint import write_json
from inlay.engine.device import find_device
from inlay.engine.randomness import generator
from inlay.pipeline import Workshop
from inlay.settings import preset

__all__ = ["errors_of", "fitted", "main"]

Array = npt.NDArray[np.float64]

RESULTS = Path(__file__).parent / "results" / "own-images"
PART = "count-constants"

# Images of each class that are looked at: a few minutes of one core for each data set.
_IMAGES = {"cifar100": 300, "tinyimagenet": 120}
_KNOWN, _LABELLED = (5, 10, 20, 40, 80), (30, 60, 100)
_MOST_CLASSES, _FEWEST_IMAGES = 60, 25
_RATIOS = (1, 1, 3, 10)
_PILES_PER_SPLIT = 4
# The traces are nearly collinear; without it their weights would be large and cancel.
_RIDGE = 0.3


def main(arguments: list[str] | None = None) -> None:
    """Draw, fit and write."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    piles = {name: _piles(*_features(name, options), options.piles, name) for name in _IMAGES}
    transfer = {}
    for name, own in piles.items():
        others = [other for other in piles if other != name]
        rule = fitted(*_joined([piles[other] for other in others]))
        transfer[name] = {"fitted_to": others, **errors_of(rule, *own)}
    constants = fitted(*_joined(list(piles.values())))
    command = "python -m benchmarks.count_constants --data ROOT --work FOLDER --piles"
    record = {
        "part": PART,
        "steps": list(STEPS),
        "constants": [round(float(value), 4) for value in constants],
        "transfer": transfer,
        "command": f"{command} {options.piles}",
        **origin("cpu", [0]),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(options.out / f"{PART}.json", record)
    print(record["constants"], transfer)


def fitted(values: Array, truth: Array) -> Array:
    """Fit log k as a linear function of descriptions, by ridge regression on standardised values.

    Args:
        values: Descriptions of piles, [N, F].
        truth: Numbers of classes, [N].

    Returns:
        The weights and then the constant, [F + 1].
    """
    centre, scale = values.mean(axis=0), values.std(axis=0)
    inputs = (values - centre) / scale
    targets = np.log(truth)
    weights = np.linalg.solve(inputs.T @ inputs + _RIDGE * np.eye(len(scale)), inputs.T @ (targets - targets.mean()))
    weights = weights / scale
    return np.append(weights, targets.mean() - weights @ centre)


def errors_of(constants: Array, values: Array, truth: Array) -> dict[str, float]:
    """Say how far off a rule is: root mean square of the logarithm, and the share within 20 % and a factor of √2."""
    logarithms = values @ constants[:-1] + constants[-1]
    errors = logarithms - np.log(truth)
    rounded = np.maximum(1, np.round(np.exp(logarithms)))
    return {
        "log_error": float(np.sqrt(np.mean(errors**2))),
        "within_20_percent": float(np.mean(np.abs(rounded / truth - 1) <= 0.2 + 1e-9)),
        "within_root_2": float(np.mean(np.abs(errors) <= math.log(2) / 2)),
    }


def _features(name: str, options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Return features and classes of some images of each class, computed once."""
    file = options.work / f"{name}.pt"
    if not file.exists():
        data = benchmark(name)
        images = load(data.find(options.data), split="train", size=data.side)
        assert images.labels is not None
        randomness = generator(0, "count constants", name)
        places = [(images.labels == label).nonzero().flatten() for label in range(len(images.class_names))]
        chosen = torch.cat([own[torch.randperm(len(own), generator=randomness)[: _IMAGES[name]]] for own in places])
        choice = photographs.chosen_network(data.side, "cpu")
        settings, parts = preset("inlay").changed(choice.changes), []
        for part in torch.split(chosen, 2000):
            enlarged = load(images.select(part), size=choice.side)
            found = described(enlarged, choice.backbone, settings, Workshop(find_device("cpu"))).features
            assert found is not None
            parts.append(found.half())
        torch.save({"features": torch.cat(parts), "labels": images.labels[chosen]}, file)
    kept = torch.load(file)
    return kept["features"].float(), kept["labels"]


def _joined(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    return np.concatenate([values for values, _ in parts]), np.concatenate([truth for _, truth in parts])


def _piles(features: Tensor, labels: Tensor, count: int, name: str) -> tuple[Array, Array]:
    """Describe piles, [N, F], and say the number of classes of each, [N]."""
    rows: list[list[float]] = []
    truth: list[int] = []
    split = 0
    while len(rows) < count:
        randomness = np.random.default_rng([split, len(name)])
        order = randomness.permutation(int(labels.max()) + 1)
        known, labelled = int(randomness.choice(_KNOWN)), int(randomness.choice(_LABELLED))
        taught = torch.cat([_members(labels, label, labelled, randomness) for label in order[:known]])
        places = torch.searchsorted(torch.tensor(sorted(order[:known])), labels[taught])
        statistics = class_statistics(features[taught], places, known, "pooled")
        for _ in range(_PILES_PER_SPLIT):
            most = min(_MOST_CLASSES, len(order) - known)
            classes = round(math.exp(randomness.uniform(0, math.log(most))))
            pile = _pile(features, labels, randomness.permutation(order[known:])[:classes], randomness)
            found = walk_description(pile, statistics, generator(split, "pile", str(len(rows))))
            assert found is not None
            rows.append(found)
            truth.append(classes)
        split += 1
        print(f"{name}: {len(rows)} of {count} piles", flush=True)
    return np.array(rows), np.array(truth, dtype=float)


def _pile(features: Tensor, labels: Tensor, classes: npt.NDArray[np.int64], randomness: np.random.Generator) -> Tensor:
    largest = int((labels == int(classes[0])).sum())
    images = math.exp(randomness.uniform(math.log(_FEWEST_IMAGES), math.log(largest)))
    ratio, steps = float(randomness.choice(_RATIOS)), max(1, len(classes) - 1)
    sizes = [max(2, round(images * ratio ** (-place / steps))) for place in range(len(classes))]
    chosen = [_members(labels, label, size, randomness) for label, size in zip(classes, sizes, strict=True)]
    return features[torch.cat(chosen)]


def _members(labels: Tensor, label: int, count: int, randomness: np.random.Generator) -> Tensor:
    own = (labels == int(label)).nonzero().flatten()
    return own[torch.from_numpy(randomness.permutation(len(own))[:count])]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds CIFAR-100 and Tiny-ImageNet")
    parser.add_argument("--work", type=Path, required=True, help="folder for features, which are computed once")
    parser.add_argument("--piles", type=int, default=400, help="piles of each data set")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    main()
