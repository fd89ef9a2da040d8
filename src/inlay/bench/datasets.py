"""The data sets of the benchmark: their files, their stages, and what the protocol sets for each."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inlay.data import ImageSet, Stages, load
from inlay.errors import InlayError

__all__ = ["BENCHMARKS", "Benchmark", "benchmark"]


@dataclass(frozen=True)
class Benchmark:
    """A data set and its protocol.

    Attributes:
        name: Name on the command line and in files.
        classes: Number of classes.
        side: Side to which image files are brought; arrays keep theirs.
        places: Files and folders under which it is looked for.
        cuts: Number of classes of the base stage and of each discovery stage, by the number of discovery stages.
        base_view: Weak augmentation of the base stage.
        stage_view: Weak augmentation of discovery stages.
        numbers: Settings of loss terms that the protocol gives per data set, for systems that have those terms.
        mixed_batches: FRoST's code draws batches from old and novel images together and drops the old ones.
    """

    name: str
    classes: int
    side: int
    places: tuple[str, ...]
    cuts: Mapping[int, tuple[int, ...]]
    base_view: str
    stage_view: str
    numbers: Mapping[str, float]
    mixed_batches: bool

    def cut(self, steps: int) -> tuple[int, ...]:
        """Return the number of classes of each stage, the base stage first.

        Args:
            steps: Number of discovery stages.

        Raises:
            InlayError: If the protocol has no such cut.
        """
        if steps not in self.cuts:
            possible = ", ".join(map(str, self.cuts))
            raise InlayError(f"{self.name} is not cut into {steps} discovery stages; write --steps {possible}.")
        return self.cuts[steps]

    def find(self, root: Path) -> Path:
        """Return the file or folder of this data set.

        Args:
            root: Folder that holds the data sets.

        Raises:
            InlayError: If it is not there.
        """
        for place in self.places:
            if (root / place).exists():
                return root / place
        raise InlayError(f"{self.name} is not in '{root}'; put it there as one of: {', '.join(self.places)}.")

    def images(self, root: Path) -> tuple[ImageSet, ImageSet]:
        """Read the training and the test images.

        Args:
            root: Folder that holds the data sets.

        Raises:
            InlayError: If the images are not there or are not those of this data set.
        """
        path = self.find(root)
        # An array has one size; image files would all be opened once more to find theirs.
        size = None if path.is_file() else self.side
        train, test = load(path, split="train", size=size), load(path, split="test", size=size)
        if len(train.class_names) != self.classes:
            raise InlayError(
                f"{self.name} has {self.classes} classes but '{path}' has {len(train.class_names)}; put the whole data "
                f"set there."
            )
        return train, test

    def stages(self, root: Path, steps: int, split_seed: int | None, together: bool = False) -> Stages:
        """Read the images and cut them into stages.

        Args:
            root: Folder that holds the data sets.
            steps: Number of discovery stages.
            split_seed: Seed by which classes are shuffled; None takes them in label order.
            together: Make all classes, in the same order, one labelled base stage.

        Raises:
            InlayError: If the images are not there or are not those of this data set.
        """
        train, test = self.images(root)
        base, *novel = (self.classes,) if together else self.cut(steps)
        return Stages(train, test, base=base, novel=novel, split_seed=split_seed)


BENCHMARKS = {
    entry.name: entry
    for entry in (
        Benchmark(
            name="cifar10",
            classes=10,
            side=32,
            places=("cifar10", "cifar10.npz", "cifar-10-batches-py", "CIFAR-10-dataset"),
            cuts={1: (5, 5)},
            base_view="weak",
            stage_view="weak-reflect",
            numbers={
                "replay.per_class": 20,
                "consistency.weight": 5,
                "consistency.ramp": 0.25,
                "self_training.ramp": 0.25,
            },
            mixed_batches=True,
        ),
        Benchmark(
            name="cifar100",
            classes=100,
            side=32,
            places=("cifar100", "cifar100.npz", "cifar-100-python", "CIFAR-100-dataset"),
            cuts={1: (80, 20), 2: (80, 10, 10), 5: (50, 10, 10, 10, 10, 10)},
            base_view="weak",
            stage_view="weak",
            numbers={
                "replay.per_class": 2,
                "consistency.weight": 50,
                "consistency.ramp": 0.75,
                "self_training.ramp": 0.75,
            },
            mixed_batches=True,
        ),
        Benchmark(
            name="tinyimagenet",
            classes=200,
            side=64,
            places=("tinyimagenet", "tinyimagenet.npz", "tiny-imagenet-200"),
            cuts={1: (180, 20), 2: (180, 10, 10)},
            base_view="weak-crop",
            stage_view="weak-crop",
            numbers={
                "replay.per_class": 3,
                "consistency.weight": 50,
                "consistency.ramp": 0.75,
                "self_training.ramp": 0.75,
            },
            mixed_batches=False,
        ),
    )
}


def benchmark(name: str) -> Benchmark:
    """Return a data set by name.

    Raises:
        InlayError: If there is none of that name.
    """
    if name not in BENCHMARKS:
        raise InlayError(f"There is no data set {name!r} in the benchmark; choose from: {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]
