import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inlay.evaluation.confusion import confusion, old_new_confusion

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=30)


@given(PAIRS)
def test_counts_against_a_loop(pairs: list[tuple[int, int]]) -> None:
    expected = np.zeros((5, 5))
    for predicted, truth in pairs:
        expected[truth, predicted] += 1
    counts = confusion([predicted for predicted, _ in pairs], [truth for _, truth in pairs], 5)
    assert counts.shape == (5, 5) and (counts == expected).all()


@given(PAIRS, st.integers(1, 4))
def test_shares_of_old_and_new_against_a_loop(pairs: list[tuple[int, int]], old: int) -> None:
    pairs = [*pairs, (0, 0), (4, 4)]
    counts = {(is_new, goes_new): 0 for is_new in (False, True) for goes_new in (False, True)}
    for predicted, truth in pairs:
        counts[truth >= old, predicted >= old] += 1
    shares = old_new_confusion([predicted for predicted, _ in pairs], [truth for _, truth in pairs], old)
    for is_new in (False, True):
        images = counts[is_new, False] + counts[is_new, True]
        for goes_new in (False, True):
            assert shares[int(is_new), int(goes_new)] == counts[is_new, goes_new] / images


def test_tensors_are_accepted() -> None:
    predicted, truth = torch.tensor([0, 2, 1]), torch.tensor([0, 1, 2])
    assert confusion(predicted, truth, 3).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert old_new_confusion(predicted, truth, 2).tolist() == [[0.5, 0.5], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("predicted", "truth", "said"),
    [
        ([0, 1], [0], "2 predictions but 1 true"),
        ([0, 3], [0, 1], "predicted must hold ids from 0 to 2"),
        ([0, 1], [0, -1], "truth must hold ids from 0 to 2"),
    ],
)
def test_ids_that_do_not_fit_are_refused(predicted: list[int], truth: list[int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        confusion(predicted, truth, 3)


@pytest.mark.parametrize(
    ("predicted", "truth", "said"),
    [
        ([0, 2], [0, 1], "both old and new"),
        ([0, 2], [2, 2], "both old and new"),
        ([0, -1], [0, 2], "ids from 0"),
        ([0, 1], [0, -1], "ids from 0"),
        ([0, 1, 2], [0, 2], "3 predictions but 2 true"),
    ],
)
def test_shares_need_old_and_new_images(predicted: list[int], truth: list[int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        old_new_confusion(predicted, truth, 2)
