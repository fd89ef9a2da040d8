"""One process, alone or of a group, that trains for benchmarks/scaling.py: how fast, and how well.

    python -m benchmarks.scaling_child --out FILE ...                                                        (alone)
    python -m torch.distributed.run --standalone --nproc-per-node 2 -m benchmarks.scaling_child --out FILE ... (a group)

The first process writes the figures to FILE.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.timed import TimedWorkshop
from sklearn.datasets import load_digits

from inlay import Learner
from inlay.data import ImageSet, Stages
from inlay.demo.recipe import demo_settings
from inlay.engine.checkpoint import write_json
from inlay.engine.device import find_device
from inlay.engine.loop import Loop
from inlay.engine.world import World
from inlay.pipeline import learn_base, learn_stage
from inlay.settings import Settings

__all__ = ["digit_stages", "measured", "pictures", "rates", "scores"]

NETWORK = "resnet8"
# Speed is measured on images that are large enough for the network to be the larger part of a step.
SIDE, BATCH, OLD_CLASSES, NEW_CLASSES = 32, 128, 5, 5
LEVELS = 15
TRAIN_SHARE = 0.75


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pace", default="auto")
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--epochs", type=int, default=1, help="epochs of each stage whose scores are taken")
    parser.add_argument("--steps", type=int, default=3, help="steps of each stage whose speed is measured")
    options = parser.parse_args()
    found = measured(options.device, options.pace, options.seeds, options.epochs, options.steps)
    if World.current().is_main:
        write_json(options.out, found)


def measured(device: str, pace: str, seeds: Sequence[int], epochs: int, steps: int) -> dict[str, Any]:
    """Return the number of processes and threads, images per second, and the scores of each seed.

    Args:
        device: "cpu" or "cuda".
        pace: How steps are taken; see `TrainingSettings`.
        seeds: Seeds of the runs that are scored.
        epochs: Epochs of each of their stages.
        steps: Steps over which the speed is measured, besides the first.
    """
    settings = _settings(epochs, pace)
    found = {"processes": World.current().size, "threads": torch.get_num_threads()}
    return found | rates(device, settings, steps) | {"runs": [scores(device, settings, seed) for seed in seeds]}


def rates(device: str, settings: Settings, steps: int) -> dict[str, float]:
    """Return the images per second of the training loops of a base stage and of a discovery stage."""
    count = BATCH * (steps + 1)
    batches = {"base.training.batch": BATCH, "training.batch": BATCH}
    settings = settings.changed(batches | {"base.training.epochs": 1, "training.epochs": 1})
    workshop = TimedWorkshop(find_device(device))
    known = learn_base(pictures(OLD_CLASSES, count, SIDE, seed=0), NETWORK, settings, 0, workshop)
    learn_stage(known, pictures(NEW_CLASSES, count, SIDE, seed=1).without_labels(), NEW_CLASSES, settings, workshop)
    base, discovery = (_rate(loop) for loop in workshop.loops)
    return {"base_images_per_s": base, "discovery_images_per_s": discovery}


def scores(device: str, settings: Settings, seed: int) -> dict[str, Any]:
    """Learn five digits, discover the other five, and return the scores on test images."""
    stages = digit_stages()
    learner = Learner(NETWORK, settings=settings, seed=seed, device=device)
    learner.fit(stages.base)
    learner.discover(stages.unlabelled(1), len(stages.class_names(1)))
    found = learner.evaluate(stages.test(1), match=stages.labelled(1))
    return {"seed": seed, "old": found.old, "new": found.new, "all": found.all}


def digit_stages() -> Stages:
    """Return scikit-learn's digits: five labelled ones, and a stage of the other five."""
    found = load_digits()
    digits = ImageSet.from_arrays((found.images * LEVELS).astype(np.uint8), found.target)
    order = np.random.default_rng(0).permutation(len(digits)).tolist()
    train = round(TRAIN_SHARE * len(digits))
    return Stages(digits.select(order[:train]), digits.select(order[train:]), base=5, novel=[5])


def pictures(classes: int, count: int, side: int, seed: int) -> ImageSet:
    """Return labelled grey images: coarse patterns, one for each class, under noise.

    Args:
        classes: Number of classes, at most `count`.
        count: Number of images; each class has about the same.
        side: Height and width, a multiple of 4.
        seed: Seed of patterns and noise.
    """
    random = np.random.default_rng(seed)
    patterns = random.uniform(0, 255, (classes, 4, 4)).repeat(side // 4, axis=1).repeat(side // 4, axis=2)
    labels = np.arange(count) % classes
    noisy = patterns[labels] + random.normal(0, 40, (count, side, side))
    return ImageSet.from_arrays(noisy.clip(0, 255).astype(np.uint8), labels)


def _settings(epochs: int, pace: str) -> Settings:
    """Return the settings of the demonstration in float32, with another number of epochs."""
    training = {"epochs": epochs, "precision": "float32", "pace": pace}
    places = ("base.training", "training")
    return demo_settings().changed({f"{place}.{name}": value for place in places for name, value in training.items()})


def _rate(loop: Loop) -> float:
    return loop.timing.images / loop.timing.train_seconds


if __name__ == "__main__":
    main()
