"""Fit the rule that counts classes by walks: benchmarks/results/own-images/count-constants.json.

    python -m benchmarks.count_constants --data ROOT --work FOLDER [--piles 400]

ROOT holds CIFAR-100 and Tiny-ImageNet. Piles of known content are drawn from both: random known classes, from whose
images the metric comes, and 1 to 60 others of 25 images or more each, evenly or up to 1:10. The features are those of
the network that `inlay fit` chooses for photographs; they are kept in FOLDER. Piles of made-up groups, apart or
overlapping, round or long, are added, so that the rule is right where classes are clear and where one is seen from many
sides. The rule is written into the package, and how far off one is that has not seen a data set into the results.
"""

import argparse
import hashlib
import json
import math
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from benchmarks import photographs
from benchmarks.own_images_record import origin
from torch import Tensor

import inlay.discovery
from inlay.bench.datasets import benchmark
from inlay.data import load
from inlay.described import described
from inlay.discovery.class_graph import RULE_FILE, WalkRule, walk_description
from inlay.discovery.statistics import class_statistics
from inlay.engine.checkpoint import write_json
from inlay.engine.device import find_device
from inlay.engine.randomness import generator
from inlay.pipeline import Workshop
from inlay.settings import preset

__all__ = ["PART", "RESULTS", "errors_of", "fitted", "main"]

Array = npt.NDArray[np.float64]
Piles = tuple[Array, Array]

RESULTS = Path(__file__).parent / "results" / "own-images"
PART = "count-constants"

# Images of each class that are looked at: a few minutes of one core for each data set.
_IMAGES = {"cifar100": 300, "tinyimagenet": 120}
_MADE_UP = ("round", "long")
_KNOWN, _LABELLED = (5, 10, 20, 40, 80), (30, 60, 100)
_MOST_CLASSES, _FEWEST_IMAGES, _MOST_IMAGES = 60, 25, 250
_RATIOS = (1, 1, 3, 10)
_PILES_PER_SPLIT = 4
_DIMENSIONS, _APART = (8, 16, 32, 64, 128), (1.5, 6.0)
# Directions in which a long group extends, and the share of its variance that lies there.
_LENGTHS, _LONG_SHARE = (1, 2, 3, 4), 0.8
_RIDGE = 0.5
_DIGITS = 4


def main(arguments: list[str] | None = None) -> None:
    """Draw, fit and write."""
    options = _parser().parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    names = [*_IMAGES, *_MADE_UP]
    with ProcessPoolExecutor(max_workers=options.processes) as pool:
        piles = dict(zip(names, pool.map(partial(_drawn, options=options), names), strict=True))
    others = {name: [other for other in piles if other != name] for name in _IMAGES}
    rules = {name: fitted(*_joined([piles[other] for other in others[name]])) for name in _IMAGES}
    errors = {name: errors_of(rules[name], *piles[name]) for name in _IMAGES}
    error = math.sqrt(sum(entry["log_error"] ** 2 for entry in errors.values()) / len(errors))
    rule = fitted(*_joined(list(piles.values())), error=round(error, 3)).to_json()
    command = "python -m benchmarks.count_constants --data ROOT --work FOLDER --piles"
    record = {
        "part": PART,
        "rule": hashlib.sha256(json.dumps(rule).encode()).hexdigest(),
        "transfer": {name: {"fitted_to": others[name], **errors[name]} for name in _IMAGES},
        "command": f"{command} {options.piles}",
        **origin("cpu", [0]),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(options.out / f"{PART}.json", record)
    options.rule.write_text(json.dumps(rule) + "\n", encoding="utf-8")
    print(record["transfer"])


def fitted(values: Array, truth: Array, error: float = 0.0) -> WalkRule:
    """Fit the logarithm of the number of classes by kernel ridge regression.

    Args:
        values: Descriptions of piles, [N, F].
        truth: Numbers of classes, [N].
        error: What the rule says of its error.
    """
    centre, scale = values.mean(axis=0).round(_DIGITS), values.std(axis=0).round(_DIGITS)
    piles, targets = ((values - centre) / scale).round(_DIGITS), np.log(truth)
    constant = float(targets.mean().round(_DIGITS))
    kernel = WalkRule.likeness(piles, piles)
    weights = np.linalg.solve(kernel + _RIDGE * np.eye(len(piles)), targets - constant).astype(np.float64)
    return WalkRule(centre, scale, piles, weights.round(_DIGITS), constant, error)


def errors_of(rule: WalkRule, values: Array, truth: Array) -> dict[str, float]:
    """Say how far off a rule is: root mean square of the logarithm, and the share within 20 % and a factor of √2."""
    logarithms = np.maximum(0, [rule(row) for row in values.tolist()])
    errors, rounded = logarithms - np.log(truth), np.round(np.exp(logarithms))
    return {
        "log_error": float(np.sqrt(np.mean(errors**2))),
        "within_20_percent": float(np.mean(np.abs(rounded / truth - 1) <= 0.2 + 1e-9)),
        "within_root_2": float(np.mean(np.abs(errors) <= math.log(2) / 2)),
    }


def _drawn(name: str, options: argparse.Namespace) -> Piles:
    torch.set_num_threads(1)
    if name in _MADE_UP:
        return _made_up(options.piles, name == "long")
    return _photographed(*_features(name, options), options.piles, name)


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


def _joined(parts: list[Piles]) -> Piles:
    return np.concatenate([values for values, _ in parts]), np.concatenate([truth for _, truth in parts])


def _photographed(features: Tensor, labels: Tensor, count: int, name: str) -> Piles:
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
    sizes = _sizes(len(classes), int((labels == int(classes[0])).sum()), randomness)
    chosen = [_members(labels, label, size, randomness) for label, size in zip(classes, sizes, strict=True)]
    return features[torch.cat(chosen)]


def _sizes(classes: int, most: int, randomness: np.random.Generator) -> list[int]:
    """Draw how many images classes have, which fall evenly on a logarithmic scale."""
    images = math.exp(randomness.uniform(math.log(_FEWEST_IMAGES), math.log(most)))
    ratio, steps = float(randomness.choice(_RATIOS)), max(1, classes - 1)
    return [max(2, round(images * ratio ** (-place / steps))) for place in range(classes)]


def _made_up(count: int, long: bool) -> Piles:
    """Describe piles of Gaussian groups, as large as each other but for chance."""
    rows, truth = [], []
    for number in range(count):
        randomness = np.random.default_rng([number, long])
        dimensions = int(randomness.choice(_DIMENSIONS))
        apart = math.exp(randomness.uniform(math.log(_APART[0]), math.log(_APART[1]))) * math.sqrt(16 / dimensions)
        classes = round(math.exp(randomness.uniform(0, math.log(_MOST_CLASSES))))
        length = int(randomness.choice(_LENGTHS)) if long else 0
        taught = _groups([40] * 20, dimensions, apart, length, randomness)
        statistics = class_statistics(taught, torch.arange(20).repeat_interleave(40), 20, "pooled")
        pile = _groups(_sizes(classes, _MOST_IMAGES, randomness), dimensions, apart, length, randomness)
        found = walk_description(pile, statistics, generator(number, "made-up pile"))
        assert found is not None
        rows.append(found)
        truth.append(classes)
    return np.array(rows), np.array(truth, dtype=float)


def _groups(sizes: list[int], dimensions: int, apart: float, length: int, randomness: np.random.Generator) -> Tensor:
    """Draw groups that are round, or extend in so many directions, each in others."""
    parts = []
    for size in sizes:
        centre, spread = apart * randomness.normal(size=dimensions), math.exp(0.25 * randomness.normal())
        points = randomness.normal(size=(size, dimensions))
        if length:
            along = randomness.normal(size=(size, length)) @ randomness.normal(size=(length, dimensions))
            points = math.sqrt(_LONG_SHARE / length) * along + math.sqrt(1 - _LONG_SHARE) * points
        parts.append(centre + spread * points)
    return torch.from_numpy(np.concatenate(parts)).float()


def _members(labels: Tensor, label: int, count: int, randomness: np.random.Generator) -> Tensor:
    own = (labels == int(label)).nonzero().flatten()
    return own[torch.from_numpy(randomness.permutation(len(own))[:count])]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds CIFAR-100 and Tiny-ImageNet")
    parser.add_argument("--work", type=Path, required=True, help="folder for features, which are computed once")
    parser.add_argument("--piles", type=int, default=400, help="piles of each data set")
    parser.add_argument("--processes", type=int, help="processes side by side; by default one for each core")
    parser.add_argument("--out", type=Path, default=RESULTS)
    rule = Path(inlay.discovery.__file__).parent / RULE_FILE
    parser.add_argument("--rule", type=Path, default=rule, help="file of the rule; by default that of the package")
    return parser


if __name__ == "__main__":
    main()
