import pytest
import torch
from torch import Tensor, nn

from inlay.branches.buffers import buffers_kept


class _Counting(nn.Module):
    """Counts its calls in place, averages by assignment, and begins a buffer late."""

    calls: Tensor
    mean: Tensor
    late: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("late", None)
        self.register_buffer("spread", torch.arange(3.0).expand(2, 3))

    def forward(self, values: Tensor) -> Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * values.mean(0)
        self.late = values
        return values


def test_buffers_have_their_values_back() -> None:
    outer = nn.Sequential(_Counting(), nn.BatchNorm1d(2))
    other = _Counting()
    calls = outer[0].calls
    before = {name: tensor.clone() for name, tensor in outer.state_dict().items()}
    with buffers_kept(outer, other):
        outer(torch.ones(3, 2))
        other(torch.ones(3, 2))
        assert outer[0].calls == 1 and outer[1].num_batches_tracked == 1
    assert outer.state_dict().keys() == before.keys()
    assert all(torch.equal(value, outer.state_dict()[name]) for name, value in before.items())
    assert outer[0].calls is calls
    assert other.calls == 0 and other.late is None


def test_buffers_have_their_values_back_after_an_error() -> None:
    network = _Counting()
    with pytest.raises(ValueError, match="stop"), buffers_kept(network):
        network(torch.ones(3, 2))
        raise ValueError("stop")
    assert network.calls == 0
