"""A labelled benchmark cut into a base stage and stages of discovery."""

from collections.abc import Sequence

import torch
from rich.table import Table
from rich.text import Text

from inlay.data.images import ImageSet
from inlay.errors import InlayError

__all__ = ["Stages"]

_NAMES_SHOWN = 4


class Stages:
    """The stages of a benchmark: stage 0 has labels, each later stage brings new classes without labels.

    Every image set is cut out anew when asked for, so keep the one you work with.

    Args:
        train: Labelled training images of all classes.
        test: Labelled test images; classes are matched with those of `train` by name.
        base: The number of classes of stage 0.
        novel: The number of classes that each discovery stage brings; classes may be left over.
        split_seed: None takes the classes in their native order; a number shuffles them by that seed.

    Raises:
        InlayError: The numbers do not fit the classes, or the two sets do not fit each other.
    """

    def __init__(
        self,
        train: ImageSet,
        test: ImageSet,
        *,
        base: int,
        novel: Sequence[int],
        split_seed: int | None = None,
    ) -> None:
        _check_sets(train, test)
        sizes = (base, *novel)
        if min(sizes) < 1:
            raise InlayError(f"A stage of {min(sizes)} classes is not possible; give each stage at least one class.")
        if sum(sizes) > len(train.class_names):
            raise InlayError(
                f"Stages of {' + '.join(map(str, sizes))} classes need {sum(sizes)} classes but there are "
                f"{len(train.class_names)}; make the stages smaller."
            )
        order = iter(_class_order(train.class_names, split_seed))
        self._train = train
        self._test = test
        self._classes = tuple(tuple(next(order) for _ in range(size)) for size in sizes)
        self._check_images()

    @classmethod
    def even(
        cls,
        train: ImageSet,
        test: ImageSet,
        base: int = 80,
        stages: int = 2,
        split_seed: int | None = None,
    ) -> "Stages":
        """Divide all classes beyond the base evenly among discovery stages.

        Args:
            train: Labelled training images.
            test: Labelled test images.
            base: The number of classes of stage 0.
            stages: The number of discovery stages.
            split_seed: None for the native order of classes, or the seed of a shuffle.

        Raises:
            InlayError: The classes cannot be divided so.
        """
        rest = len(train.class_names) - base
        if stages < 1 or rest < 1 or rest % stages:
            raise InlayError(
                f"{len(train.class_names)} classes less {base} of the base cannot be divided evenly among "
                f"{stages} stages; choose another base or number of stages, or write the size of each stage."
            )
        return cls(train, test, base=base, novel=[rest // stages] * stages, split_seed=split_seed)

    @property
    def count(self) -> int:
        """The number of discovery stages."""
        return len(self._classes) - 1

    @property
    def base(self) -> ImageSet:
        """The labelled training images of stage 0; label i is `class_names(0)[i]`."""
        return self._train.of_classes(self._classes[0])

    def class_names(self, k: int) -> tuple[str, ...]:
        """The classes that stage k brings; stage 0 is the base."""
        return self._classes[self._checked(k, first=0)]

    def unlabelled(self, k: int) -> ImageSet:
        """The training images of discovery stage k, counted from 1, without labels."""
        return self.labelled(k).without_labels()

    def labelled(self, k: int) -> ImageSet:
        """The images of `unlabelled(k)` in the same order with labels, for matching alone.

        Label i is `class_names(k)[i]`.
        """
        return self._train.of_classes(self._classes[self._checked(k, first=1)])

    def test(self, k: int) -> ImageSet:
        """The test images of all classes up to stage k; labels count on from stage to stage."""
        return self._test.of_classes(self._seen(self._checked(k, first=0)))

    def table(self) -> Table:
        """A table with one row per stage; the test images are those of all classes up to the stage."""
        train = _images_per_class(self._train)
        test = _images_per_class(self._test)
        table = Table("stage", "kind")
        for heading in ("classes", "train images", "test images"):
            table.add_column(heading, justify="right")
        table.add_column("class names")
        for k, names in enumerate(self._classes):
            table.add_row(
                str(k),
                "discovery" if k else "base",
                str(len(names)),
                str(sum(train[name] for name in names)),
                str(sum(test[name] for name in self._seen(k))),
                Text(_abbreviated(names)),
            )
        return table

    def _seen(self, k: int) -> tuple[str, ...]:
        return tuple(name for names in self._classes[: k + 1] for name in names)

    def _checked(self, k: int, first: int) -> int:
        if not first <= k <= self.count:
            raise InlayError(f"There is no stage {k} here; write a stage from {first} to {self.count}.")
        return k

    def _check_images(self) -> None:
        for kind, images in (("training", self._train), ("test", self._test)):
            counts = _images_per_class(images)
            for name in self._seen(self.count):
                if not counts.get(name):
                    raise InlayError(f"The class '{name}' has no {kind} images; add some, or leave the class out.")


def _check_sets(train: ImageSet, test: ImageSet) -> None:
    for kind, images in (("training", train), ("test", test)):
        if images.labels is None:
            raise InlayError(f"The {kind} images have no labels; load a folder with one sub-folder per class.")
    if (train.size, train.channels) != (test.size, test.channels):
        raise InlayError(
            f"Training images are {train.channels} x {train.size[0]} x {train.size[1]} but test images are "
            f"{test.channels} x {test.size[0]} x {test.size[1]}; load both with the same size and channels."
        )


def _class_order(class_names: tuple[str, ...], split_seed: int | None) -> list[str]:
    if split_seed is None:
        return list(class_names)
    shuffled = torch.randperm(len(class_names), generator=torch.Generator().manual_seed(split_seed))
    return [class_names[index] for index in shuffled.tolist()]


def _images_per_class(images: ImageSet) -> dict[str, int]:
    if images.labels is None:
        return {}
    counts = torch.bincount(images.labels, minlength=len(images.class_names)).tolist()
    return dict(zip(images.class_names, counts, strict=True))


def _abbreviated(names: tuple[str, ...]) -> str:
    if len(names) <= _NAMES_SHOWN:
        return ", ".join(names)
    return ", ".join((*names[: _NAMES_SHOWN - 1], "…", names[-1]))
