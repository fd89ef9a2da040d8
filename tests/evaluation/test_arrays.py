import numpy as np
import pytest
import torch

from inlay.evaluation.arrays import to_ids, to_logits


def test_ids_come_from_lists_arrays_and_tensors() -> None:
    for values in ([3, -1], np.array([3, -1], dtype=np.int8), torch.tensor([3, -1], dtype=torch.int32)):
        ids = to_ids(values, "ids")
        assert ids.dtype == np.int64
        assert ids.tolist() == [3, -1]
    assert to_ids([], "ids").shape == (0,)


def test_ids_refuse_fractions_flags_and_matrices() -> None:
    for values in ([0.5, 1.0], [True, False], [[1, 2]]):
        with pytest.raises(ValueError, match="labels must be a vector of integers"):
            to_ids(values, "labels")


def test_logits_come_from_any_floating_type() -> None:
    tensor = torch.tensor([[0.5, -2.0]], dtype=torch.bfloat16, requires_grad=True)
    assert to_logits(tensor).tolist() == [[0.5, -2.0]]
    assert to_logits([[1, 2]]).dtype == np.float64


def test_logits_refuse_vectors_and_nan() -> None:
    with pytest.raises(ValueError, match="logits must be a matrix"):
        to_logits([1.0, 2.0])
    with pytest.raises(ValueError, match="must not hold NaN"):
        to_logits([[1.0, float("nan")]])
