import copy

import pytest
import torch
from torch import Tensor

from inlay.discovery.queue import FeatureQueue


def _queue(size: int = 5, width: int = 3, seed: int = 100) -> FeatureQueue:
    return FeatureQueue(size, width, torch.Generator().manual_seed(seed), torch.float64)


def _batch(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_starts_with_unit_vectors_of_the_generator() -> None:
    queue = _queue(50)
    torch.testing.assert_close(queue.features.norm(dim=1), torch.ones(50, dtype=torch.float64))
    assert torch.equal(queue.features, _queue(50).features)
    assert not torch.equal(queue.features, _queue(50, seed=1).features)
    assert len({tuple(row) for row in queue.features.tolist()}) == 50


@pytest.mark.parametrize("batches", [[2, 2, 2, 2], [5, 5], [3, 7, 1], [12, 2], [11, 23], [0, 4]])
def test_equals_pushing_rows_one_by_one_with_a_loop(batches: list[int]) -> None:
    queue = _queue()
    rows, place = queue.features.tolist(), 0
    for seed, count in enumerate(batches):
        batch = _batch(count, seed)
        queue.push(batch)
        for row in batch:
            rows[place] = (row / row.square().sum().sqrt()).tolist()
            place = (place + 1) % 5
        torch.testing.assert_close(queue.features, torch.tensor(rows, dtype=torch.float64), rtol=1e-14, atol=1e-15)
        assert queue.position.item() == place


def test_the_position_is_a_tensor_that_stays_where_it_is() -> None:
    queue = _queue()
    features, position = queue.features.data_ptr(), queue.position.data_ptr()
    queue.push(_batch(7, 0))
    assert queue.position.dtype == torch.int64 and queue.position.ndim == 0
    assert (queue.features.data_ptr(), queue.position.data_ptr()) == (features, position)


def test_a_saved_queue_goes_on_as_if_never_left() -> None:
    queue, restored = _queue(), _queue(seed=9)
    queue.push(_batch(3, 0))
    restored.load_state_dict(copy.deepcopy(queue.state_dict()))
    for seed in (1, 2):
        queue.push(_batch(4, seed))
        restored.push(_batch(4, seed))
    assert torch.equal(queue.features, restored.features)
    assert torch.equal(queue.position, restored.position)


def test_gradients_of_a_loss_survive_a_push() -> None:
    queue, query = _queue(), _batch(2, 0).requires_grad_()
    before = queue.features.clone()
    loss = (query @ queue.entries().T).square().sum()
    queue.push(query)
    (gradient,) = torch.autograd.grad(loss, query)
    torch.testing.assert_close(gradient, 2 * query.detach() @ before.T @ before)
    assert not queue.features.requires_grad
    assert not torch.equal(queue.features, before)


def test_features_of_another_type_are_taken_in_the_type_of_the_queue() -> None:
    queue = FeatureQueue(4, 3, torch.Generator())
    queue.push(torch.tensor([[3.0, 0.0, 4.0]], dtype=torch.bfloat16))
    assert queue.features.dtype == torch.float32
    torch.testing.assert_close(queue.features[0], torch.tensor([0.6, 0.0, 0.8]))


def test_a_vector_of_0_stays_finite() -> None:
    queue = _queue()
    queue.push(torch.zeros(2, 3, dtype=torch.float64))
    assert torch.isfinite(queue.features).all()


def test_pushing_is_one_graph() -> None:
    queue, traced = _queue(), _queue()

    def step(batch: Tensor) -> Tensor:
        scores = batch @ traced.entries().T
        traced.push(batch)
        return scores

    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend="aot_eager")
    for seed in range(3):
        batch = _batch(4, seed)
        torch.testing.assert_close(compiled(batch), batch @ queue.features.T)
        queue.push(batch)
        torch.testing.assert_close(traced.features, queue.features)
        assert torch.equal(traced.position, queue.position)


def test_bad_input_is_refused() -> None:
    for size, width in ((0, 3), (3, 0)):
        with pytest.raises(ValueError, match="size and width"):
            _queue(size, width)
    for shape in ((3,), (2, 4)):
        with pytest.raises(ValueError, match=r"\[B, 3\]"):
            _queue().push(torch.ones(shape))
