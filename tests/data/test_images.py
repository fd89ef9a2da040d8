import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from inlay.data.images import ImageSet
from inlay.errors import InlayError


@pytest.fixture
def animals() -> ImageSet:
    images = torch.arange(5 * 3 * 2 * 4, dtype=torch.uint8).reshape(5, 3, 2, 4)
    labels = torch.tensor([2, 0, 1, 0, 2])
    return ImageSet(images, tuple("abcde"), labels, ("ant", "bee", "cat"), skipped=("f",))


def test_shape(animals: ImageSet) -> None:
    assert (len(animals), animals.channels, animals.size) == (5, 3, (2, 4))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: dataclasses.replace(s, images=s.images.float()),
        lambda s: dataclasses.replace(s, images=s.images[0]),
        lambda s: dataclasses.replace(s, names=("a",)),
        lambda s: dataclasses.replace(s, labels=None),
        lambda s: dataclasses.replace(s, labels=s.labels.int()),
        lambda s: dataclasses.replace(s, labels=s.labels[:3]),
        lambda s: dataclasses.replace(s, labels=s.labels + 1),
        lambda s: dataclasses.replace(s, labels=s.labels - 1),
        lambda s: dataclasses.replace(s, class_names=("ant", "ant", "cat")),
        lambda s: s.of_classes(["ant", "ant"]),
        lambda s: s.select([0.0, 1.0]),
        lambda s: s.select([True, False]),
        lambda s: s.select(torch.zeros(2, 2, dtype=torch.long)),
    ],
)
def test_parts_that_do_not_fit(animals: ImageSet, change: Callable[[ImageSet], ImageSet]) -> None:
    with pytest.raises(ValueError):
        change(animals)


def test_the_repr_is_short(animals: ImageSet) -> None:
    assert repr(animals) == "ImageSet(5 images of 3 x 2 x 4, 3 classes)"
    assert repr(animals.without_labels()) == "ImageSet(5 images of 3 x 2 x 4, unlabelled)"


def test_select(animals: ImageSet) -> None:
    chosen = animals.select([4, 0, 0])
    assert chosen.names == ("e", "a", "a")
    assert chosen.labels is not None and chosen.labels.tolist() == [2, 2, 2]
    assert torch.equal(chosen.images, torch.stack([animals.images[i] for i in (4, 0, 0)]))
    assert chosen.class_names == animals.class_names
    assert chosen.skipped == ()
    assert animals.select(np.array([False, True, False, True, False])).names == ("b", "d")
    assert animals.select(torch.tensor([3])).names == ("d",)
    assert len(animals.select([])) == 0
    assert animals.without_labels().select([1]).labels is None


def test_without_labels(animals: ImageSet) -> None:
    plain = animals.without_labels()
    assert plain.labels is None and plain.class_names == ()
    assert plain.names == animals.names and plain.skipped == ("f",)
    assert torch.equal(plain.images, animals.images)


def test_of_classes_renumbers_and_keeps_the_order_of_images(animals: ImageSet) -> None:
    some = animals.of_classes(["cat", "ant"])
    assert some.class_names == ("cat", "ant")
    assert some.names == ("a", "b", "d", "e")
    assert some.labels is not None and some.labels.tolist() == [0, 1, 1, 0]
    assert torch.equal(some.images, animals.images[[0, 1, 3, 4]])


def test_of_classes_refuses_what_it_does_not_know(animals: ImageSet) -> None:
    with pytest.raises(InlayError, match="no class 'dog'; write one of ant, bee, cat"):
        animals.of_classes(["dog"])
    with pytest.raises(InlayError, match="Unlabelled images cannot be chosen by class"):
        animals.without_labels().of_classes(["ant"])


def test_fingerprints_depend_on_pixels_and_shape_alone(animals: ImageSet) -> None:
    prints = animals.fingerprints()
    assert len(set(prints)) == 5
    assert all(len(value) == 16 and int(value, 16) >= 0 for value in prints)
    assert animals.fingerprints() is prints
    assert animals.without_labels().select([3, 1]).fingerprints() == (prints[3], prints[1])
    turned = ImageSet(animals.images.reshape(5, 3, 4, 2), animals.names)
    assert not set(turned.fingerprints()) & set(prints)
    views = ImageSet(animals.images.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2), animals.names)
    assert views.fingerprints() == prints


def test_fingerprint_covers_everything_but_file_names(animals: ImageSet) -> None:
    changed = animals.images.clone()
    changed[4, 2, 1, 3] += 1
    others = [
        dataclasses.replace(animals, images=changed),
        dataclasses.replace(animals, labels=torch.tensor([2, 0, 1, 0, 1])),
        dataclasses.replace(animals, class_names=("ant", "bee", "dog")),
        animals.without_labels(),
        animals.select([1, 0, 2, 3, 4]),
    ]
    assert len({animals.fingerprint(), *(other.fingerprint() for other in others)}) == 6
    assert dataclasses.replace(animals, names=tuple("vwxyz")).fingerprint() == animals.fingerprint()


def test_from_arrays() -> None:
    pixels = np.zeros((2, 8, 6, 3), dtype=np.uint8)
    made = ImageSet.from_arrays(pixels, ["b", "a"], origin="digits.npz")
    assert made.names == ("digits.npz#0", "digits.npz#1")
    assert made.labels is not None and made.labels.tolist() == [1, 0]
    assert (made.class_names, made.size, made.channels) == (("a", "b"), (8, 6), 3)
    assert ImageSet.from_arrays(pixels).labels is None


def test_labels_of_another_length_are_refused() -> None:
    with pytest.raises(InlayError, match="2 images but 3 labels in array"):
        ImageSet.from_arrays(np.zeros((2, 4, 4), dtype=np.uint8), [0, 1, 0])
