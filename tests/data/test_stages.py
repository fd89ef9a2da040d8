import io

import pytest
import torch
from rich.console import Console

from inlay.data import ImageSet, Stages
from inlay.errors import InlayError

NAMES = ("ant", "bee", "cat", "dog", "eel", "fox")


def image_set(labels: list[int], class_names: tuple[str, ...] = NAMES) -> ImageSet:
    """Each image shows its position in the set, so that it can be followed."""
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 4, 4).contiguous()
    return ImageSet(images, tuple(f"#{n}" for n in range(len(labels))), torch.tensor(labels), class_names)


@pytest.fixture
def train() -> ImageSet:
    return image_set([5, 0, 1, 2, 3, 4, 0, 3, 2, 2])


@pytest.fixture
def held_out() -> ImageSet:
    # Other numbers for the same names: f e d c b a.
    return image_set([0, 1, 2, 3, 4, 5, 5, 3], tuple(reversed(NAMES)))


def shown(images: ImageSet) -> list[int]:
    return images.images[:, 0, 0, 0].tolist()


def labels(images: ImageSet) -> list[int]:
    assert images.labels is not None
    return images.labels.tolist()


def test_a_split_made_by_hand(train: ImageSet, held_out: ImageSet) -> None:
    stages = Stages(train, held_out, base=2, novel=[2, 1])
    assert stages.count == 2
    assert [stages.class_names(k) for k in range(3)] == [("ant", "bee"), ("cat", "dog"), ("eel",)]

    assert (shown(stages.base), labels(stages.base)) == ([1, 2, 6], [0, 1, 0])
    assert stages.base.class_names == ("ant", "bee")

    assert (shown(stages.labelled(1)), labels(stages.labelled(1))) == ([3, 4, 7, 8, 9], [0, 1, 1, 0, 0])
    assert (shown(stages.labelled(2)), labels(stages.labelled(2))) == ([5], [0])
    for k in (1, 2):
        assert shown(stages.unlabelled(k)) == shown(stages.labelled(k))
        assert stages.unlabelled(k).labels is None and stages.unlabelled(k).class_names == ()

    assert (shown(stages.test(0)), labels(stages.test(0))) == ([4, 5, 6], [1, 0, 0])
    assert (shown(stages.test(1)), labels(stages.test(1))) == ([2, 3, 4, 5, 6, 7], [3, 2, 1, 0, 0, 2])
    assert stages.test(2).class_names == ("ant", "bee", "cat", "dog", "eel")
    assert labels(stages.test(2)) == [4, 3, 2, 1, 0, 0, 2]


def test_a_seed_shuffles_the_classes(train: ImageSet, held_out: ImageSet) -> None:
    def order(seed: int | None) -> tuple[str, ...]:
        stages = Stages(train, held_out, base=2, novel=[2, 2], split_seed=seed)
        return tuple(name for k in range(3) for name in stages.class_names(k))

    before = torch.get_rng_state()
    orders = {order(seed) for seed in range(6)}
    assert torch.equal(torch.get_rng_state(), before)
    assert order(None) == NAMES
    assert len(orders) > 1 and all(sorted(each) == list(NAMES) for each in orders)
    assert order(3) == order(3)


def test_every_label_stays_true_under_a_shuffle(train: ImageSet, held_out: ImageSet) -> None:
    stages = Stages(train, held_out, base=3, novel=[3], split_seed=1)
    assert train.labels is not None
    for part in (stages.base, stages.labelled(1)):
        for position, label in zip(shown(part), labels(part), strict=True):
            assert part.class_names[label] == NAMES[int(train.labels[position])]


def test_even(train: ImageSet, held_out: ImageSet) -> None:
    stages = Stages.even(train, held_out, base=2, stages=2)
    assert [len(stages.class_names(k)) for k in range(3)] == [2, 2, 2]
    assert Stages.even(train, held_out, base=5, stages=1).class_names(1) == ("fox",)
    shuffled = Stages.even(train, held_out, base=2, stages=2, split_seed=4)
    same = Stages(train, held_out, base=2, novel=[2, 2], split_seed=4)
    assert shuffled.class_names(0) == same.class_names(0)
    for base, count in ((3, 2), (6, 1), (2, 0), (5, 2)):
        with pytest.raises(InlayError, match="cannot be divided evenly"):
            Stages.even(train, held_out, base=base, stages=count)


def test_bad_sizes(train: ImageSet, held_out: ImageSet) -> None:
    with pytest.raises(InlayError, match=r"Stages of 4 \+ 2 \+ 1 classes need 7 classes but there are 6"):
        Stages(train, held_out, base=4, novel=[2, 1])
    for base, novel in ((0, [2]), (2, [0]), (2, [3, -1])):
        with pytest.raises(InlayError, match="at least one class"):
            Stages(train, held_out, base=base, novel=novel)


def test_stages_out_of_range(train: ImageSet, held_out: ImageSet) -> None:
    stages = Stages(train, held_out, base=2, novel=[2])
    for k in (-1, 2):
        with pytest.raises(InlayError, match=f"no stage {k} here; write a stage from 0 to 1"):
            stages.test(k)
        with pytest.raises(InlayError, match="from 0 to 1"):
            stages.class_names(k)
    with pytest.raises(InlayError, match="no stage 0 here; write a stage from 1 to 1"):
        stages.unlabelled(0)


def test_sets_that_do_not_fit(train: ImageSet, held_out: ImageSet) -> None:
    with pytest.raises(InlayError, match="The test images have no labels"):
        Stages(train, held_out.without_labels(), base=2, novel=[2])
    with pytest.raises(InlayError, match="The class 'dog' has no test images"):
        Stages(train, held_out.of_classes(["ant", "bee", "cat"]), base=2, novel=[2])
    with pytest.raises(InlayError, match="The class 'fox' has no training images"):
        Stages(train.select(range(1, 10)), held_out, base=2, novel=[4])
    narrow = ImageSet(held_out.images[..., :2], held_out.names, held_out.labels, held_out.class_names)
    with pytest.raises(InlayError, match="Training images are 3 x 4 x 4 but test images are 3 x 4 x 2"):
        Stages(train, narrow, base=2, novel=[2])


def test_classes_left_over_may_be_empty(train: ImageSet, held_out: ImageSet) -> None:
    stages = Stages(train.select(range(1, 10)), held_out, base=2, novel=[3])
    assert (len(stages.class_names(0)), len(stages.class_names(1))) == (2, 3)


def test_table(train: ImageSet, held_out: ImageSet) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(Stages(train, held_out, base=5, novel=[1]).table())
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in console.export_text().splitlines()]
    assert [row for row in cells if row] == [
        ["0", "base", "5", "9", "7", "ant, bee, cat, …, eel"],
        ["1", "discovery", "1", "1", "8", "fox"],
    ]


def test_table_shows_brackets_in_names() -> None:
    brackets = image_set([0, 1], ("[red]", "b"))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(Stages(brackets, brackets, base=1, novel=[1]).table())
    assert "[red]" in console.export_text()
