"""What the benchmark of own images starts from: a run after its base stage, with what it knows of its own errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from benchmarks import photographs

from inlay.bench.datasets import benchmark
from inlay.bench.places import one_at_a_time
from inlay.bench.plan import Run
from inlay.bench.recipe import settings_of
from inlay.calibration import Calibration
from inlay.data import ImageSet, Stages
from inlay.data.demo import demo_digits
from inlay.demo.recipe import BACKBONE, demo_settings
from inlay.engine.device import find_device
from inlay.knowledge import Knowledge
from inlay.learner import Learner
from inlay.pipeline import Workshop, base_identity
from inlay.run_folder import RunFolder
from inlay.settings import Settings, preset

__all__ = ["DATA_SETS", "Case", "DataSet", "prepared"]

DataSet = Literal["demo", "cifar10", "cifar100", "photographs", "photographs-10", "photographs-100"]
DATA_SETS: tuple[DataSet, ...] = get_args(DataSet)

_DEMO_BASE, _DEMO_NEW = 5, 5
# The pretrained network has not seen these images, as it has those of Tiny-ImageNet for training.
# Of each class so many test images are taken, as a CPU takes minutes for all of them.
_PHOTOGRAPHS: Mapping[DataSet, tuple[str, photographs.Case, int]] = {
    "photographs": ("cifar100", photographs.Case(known=40, labelled=50, new=10, unlabelled=100), 50),
    "photographs-10": ("cifar10", photographs.Case(known=5, labelled=400, new=5, unlabelled=500), 200),
    "photographs-100": ("cifar100", photographs.Case(known=80, labelled=100, new=20, unlabelled=200), 40),
}
_HELD_OUT = 0.1


@dataclass(frozen=True)
class Case:
    """A run after its base stage.

    Attributes:
        stages: The split: base classes, and one stage of new ones.
        knowledge: What is known after the base stage.
        calibration: What the run knows of its own errors, from held-out images and a self-test.
        settings: Settings of the run.
        workshop: Where it is computed.
        seed: Seed of the run.
    """

    stages: Stages
    knowledge: Knowledge
    calibration: Calibration
    settings: Settings
    workshop: Workshop
    seed: int

    @property
    def new(self) -> ImageSet:
        """Labelled training images of the new classes, whose labels nothing but scoring may read."""
        return self.stages.labelled(1)

    @property
    def old_test(self) -> ImageSet:
        """Test images of the base classes, which nothing has seen."""
        return self.stages.test(0)


def prepared(
    data_set: DataSet,
    root: Path | None,
    seed: int,
    device: str,
    work: Path,
    split_seed: int | None = None,
    changes: Mapping[str, Any] | None = None,
    backbone: str | None = None,
) -> Case:
    """Learn the base classes with a self-test, or take both from an earlier time.

    Args:
        data_set: Name of the data set.
        root: Folder that holds the data sets; the demonstration needs none.
        seed: Seed of the run, and of the split of the demonstration and of photographs.
        device: "auto", "cpu" or "cuda".
        work: Folder of base stages, shared by all parts of the benchmark.
        split_seed: Seed of the split; None is label order, or for the demonstration and photographs the seed of the
            run.
        changes: Changes of settings by dotted path.
        backbone: Name of the network; None takes that of the recipe.

    Raises:
        InlayError: If the images are not there, or training is stopped or diverges.
    """
    stages, usual, settings = _recipe(data_set, root, seed, split_seed, device)
    backbone = backbone or usual
    settings = settings.changed(changes or {})
    name = f"{data_set}-seed{seed}-{base_identity(stages.base, backbone, settings, seed)}"
    # Said, as a pretrained network would read images at a size of its own, and piles are not read.
    size = stages.base.size[0]
    learner = Learner(backbone, settings=settings, seed=seed, size=size, device=device, run=work / name)
    work.mkdir(parents=True, exist_ok=True)
    # Parts that are measured at the same time need the same.
    with one_at_a_time(work / f"{name}.lock"):
        learner.fit(stages.base, held_out=_HELD_OUT, self_test=True)
    calibration = Calibration.from_json(RunFolder.open(work / name).read_extra("calibration") or {})
    return Case(stages, learner.knowledge, calibration, settings, Workshop(find_device(device)), seed)


def _recipe(
    data_set: DataSet, root: Path | None, seed: int, split_seed: int | None, device: str
) -> tuple[Stages, str, Settings]:
    split = seed if split_seed is None else split_seed
    if data_set in _PHOTOGRAPHS:
        source, case, tested = _PHOTOGRAPHS[data_set]
        data = benchmark(source)
        choice, (train, test) = photographs.chosen_network(data.side, device), data.images(root or Path())
        stages = photographs.drawn(train, _first_of_each(test, tested), case, split, choice.side)
        return stages, choice.backbone, preset("inlay").changed(choice.changes)
    if data_set == "demo":
        train, test = demo_digits()
        stages = Stages(train, test, base=_DEMO_BASE, novel=[_DEMO_NEW], split_seed=split)
        return stages, BACKBONE, demo_settings()
    run = Run("inlay", data_set, seed, base="ours")
    return benchmark(data_set).stages(root or Path(), 1, split_seed), run.backbone, settings_of(run)


def _first_of_each(images: ImageSet, count: int) -> ImageSet:
    assert images.labels is not None
    chosen = [(images.labels == label).nonzero().flatten()[:count] for label in range(len(images.class_names))]
    return images.select(torch.cat(chosen)).of_classes(images.class_names)
