"""One process of a group that trains a base stage and discovery stages in float64 and writes down the weights.

    python stages_child.py OUT                                                            (alone)
    python -m torch.distributed.run --standalone --nproc-per-node 2 stages_child.py OUT   (as a group)

The weights that the process with rank R ends with are in the file OUT.R.
"""

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from inlay.backbones import build, feature_size
from inlay.branches import fold
from inlay.data.normalisation import Normalisation
from inlay.discovery.statistics import class_statistics
from inlay.engine.feed import ResidentFeed
from inlay.engine.inference import features_of
from inlay.engine.loop import Companions, Loop
from inlay.engine.randomness import generator
from inlay.engine.work import Work
from inlay.engine.world import World
from inlay.heads import linear
from inlay.methods import BaseTask, StageTask, adaptive_discovering_and_merging, method, train_base
from inlay.methods.trunk import starting_network
from inlay.settings import Settings, TrainingSettings, preset
from tiny_digits import digits

OLD, NEW = ["0", "1", "2"], ["4", "5"]
SEED = 7
NORMALISE = Normalisation((0.3,), (0.4,))

STAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "inlay": ("inlay", {"assignment.partner_share": 0.4, "assignment.information": 0.5, "contrastive.weight": 0.5}),
    "paper": ("paper", {"distillation.weight": 1.0, "triplet.mining": "frozen", "triplet.other_view": "second"}),
    "paper, all weights": ("paper", {"branch.gate": "full", "triplet.mining": "hybrid", "training.momentum": 0.5}),
    "paper, aff": ("paper", {"branch.gate": "aff", "distillation.form": "sample", "classifier.heads": "one"}),
    "frost": ("frost", {"distillation.weight": 1.0}),
    "ncl": ("ncl", {"neighbourhood.queue": 60, "pairs.threshold": 0.9}),
    "dtc": ("dtc", {"clustering.refresh": 0.5}),
    "restune": ("restune", {"ranking.extremes": 4}),
}
"""Discovery stages by name: preset and changes; together they use every loss."""

# 20 steps each: 4 epochs of 5 batches.
CHANGES: dict[str, Any] = {
    "base.training.epochs": 4,
    "base.training.batch": 24,
    "base.training.learning_rate": 0.05,
    "base.contrastive": 0.5,
    "base.contrastive_view": "glyph",
    "training.epochs": 4,
    "training.batch": 16,
    "training.learning_rate": 0.05,
    "first_view": "weak",
    "second_view": "glyph",
    "classifier.refit_per_class": 30,
}


class Trained:
    """Makes loops, and remembers what each of them ended with."""

    def __init__(self, settings: TrainingSettings, feed: ResidentFeed) -> None:
        self.weights: dict[str, Tensor] = {}
        self.steps = 0
        self._settings, self._feed = settings, feed

    def __call__(self, work: Work, companions: Companions | None = None) -> Loop:
        trained = self

        class Remembered(Loop):
            def run(self) -> None:
                super().run()
                trained.weights = {name: tensor.clone() for name, tensor in self.work.state_dict().items()}
                trained.steps = self.step

        return Remembered("a stage", work, self._settings, self._feed, SEED, companions)


def base_stage(settings: Settings) -> tuple[nn.Module, Trained]:
    """Train the base stage: the folded network and what the loop ended with."""
    images = digits(OLD, last=40)
    assert images.labels is not None
    network = build("resnet8", 1, generator(SEED, "backbone"))
    size = feature_size(network, torch.zeros(2, 1, 8, 8))
    feed = ResidentFeed(images.images)
    trained = Trained(settings.base.training, feed)
    task = BaseTask(network.double(), size, feed, images.labels, len(OLD), NORMALISE, settings.base, SEED)
    train_base(task, trained)
    return fold(network.eval(), NORMALISE(images.images[:2].double() / 255)), trained


def discovery_stage(name: str, changes: Mapping[str, Any]) -> dict[str, Tensor]:
    """Train a discovery stage on a network that was never trained, and return all weights it ends with."""
    settings = preset(name).changed({**CHANGES, **changes})
    network = build("resnet8", 1, generator(SEED, "backbone")).double()
    old, new = digits(OLD, last=20), digits(NEW, last=40)
    assert old.labels is not None
    example = NORMALISE(old.images[:2].double() / 255)
    with torch.no_grad():
        for _ in range(10):
            network(NORMALISE(old.images.double() / 255))
    network = starting_network(network.eval().requires_grad_(False), settings.branch, example)
    features = features_of(network, ResidentFeed(old.images), lambda images: NORMALISE(images.double() / 255))
    statistics = class_statistics(features, old.labels, len(OLD), settings.replay.statistics)
    head = linear(features.shape[1], len(OLD), generator(SEED, "old head")).double().requires_grad_(False)
    feed = ResidentFeed(new.images)
    trained = Trained(settings.training, feed)
    task = StageTask(network, head, statistics, feed, len(NEW), NORMALISE, settings, SEED)
    outcome = adaptive_discovering_and_merging(task, method(settings.method), trained)
    assert trained.steps == 20
    kept = {**trained.weights, "assignments": outcome.assignments}
    for part, module in (("head", outcome.head), ("merged", outcome.network)):
        kept |= {f"{part}.{key}": tensor for key, tensor in module.state_dict().items()}
    return kept


def main(out: str) -> None:
    torch.set_num_threads(1)
    settings = preset("inlay").changed(CHANGES)
    folded, trained = base_stage(settings)
    assert trained.steps == 20
    found = {f"base/{name}": tensor for name, tensor in trained.weights.items()}
    found |= {f"base/folded.{name}": tensor for name, tensor in folded.state_dict().items()}
    for stage, (name, changes) in STAGES.items():
        found |= {f"{stage}/{key}": tensor for key, tensor in discovery_stage(name, changes).items()}
    torch.save({"found": found, "size": World.current().size}, f"{out}.{World.current().rank}")


if __name__ == "__main__":
    main(sys.argv[1])
