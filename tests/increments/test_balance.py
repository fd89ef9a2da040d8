from collections import Counter

import pytest
import torch
from torch import Tensor

from inlay.increments.balance import balanced_subset

_SIZES = {0: 5, 2: 40, 3: 11}


def _labels(seed: int = 0) -> Tensor:
    ordered = torch.tensor([label for label, size in _SIZES.items() for _ in range(size)])
    return ordered[torch.randperm(len(ordered), generator=torch.Generator().manual_seed(seed))]


def _drawn(labels: Tensor, seed: int, per_class: int | None = None) -> Tensor:
    return balanced_subset(labels, torch.Generator().manual_seed(seed), per_class)


@pytest.mark.parametrize(("per_class", "sizes"), [(None, (5, 5, 5)), (1, (1, 1, 1)), (8, (5, 8, 8)), (99, (5, 40, 11))])
def test_classes_have_their_sizes(per_class: int | None, sizes: tuple[int, ...]) -> None:
    labels = _labels()
    drawn = _drawn(labels, 1, per_class)
    assert Counter(labels[drawn].tolist()) == dict(zip(_SIZES, sizes, strict=True))
    assert drawn.tolist() == sorted(set(drawn.tolist()))


def test_the_draw_follows_the_generator() -> None:
    labels = _labels()
    assert _drawn(labels, 2, 4).equal(_drawn(labels, 2, 4))
    assert not _drawn(labels, 2, 4).equal(_drawn(labels, 3, 4))


def test_all_images_of_a_class_are_equally_likely() -> None:
    labels, draws = _labels(), 2000
    counts = sum(torch.bincount(_drawn(labels, seed), minlength=len(labels)) for seed in range(draws))
    assert isinstance(counts, Tensor)
    for label, size in _SIZES.items():
        probability = 5 / size
        deviation = (draws * probability * (1 - probability)) ** 0.5
        assert (counts[labels == label] - draws * probability).abs().max() <= 5 * deviation


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="per_class"):
        _drawn(_labels(), 0, 0)
    with pytest.raises(ValueError, match=r"\[N\]"):
        _drawn(torch.empty(0, dtype=torch.int64), 0)
